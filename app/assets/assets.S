// The demo model and the limits of `carrel golden`, linked into the binary. One pair of symbols per file; demo.cpp names them.
        .section .note.GNU-stack,"",@progbits
        .section .rodata
.macro asset name, file
        .balign 64
        .global carrel_asset_\name
        .global carrel_asset_\name\()_end
carrel_asset_\name:
        .incbin "\file"
carrel_asset_\name\()_end:
        .byte 0
.endm
        asset config, "demo-model/config.json"
        asset generation_config, "demo-model/generation_config.json"
        asset tokenizer, "demo-model/tokenizer.json"
        asset tokenizer_config, "demo-model/tokenizer_config.json"
        asset model, "demo-model/model.safetensors"
        asset golden_limits, "../../tests/golden/limits.json"
        asset samples, "demo-model/samples.json"
        asset house, "../../docs/examples/house.txt"
