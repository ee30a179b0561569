#include "app/cli/cli.h"

int main(int argc, char** argv) { return carrel::run_cli(argc, argv); }
