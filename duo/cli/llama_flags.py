"""The flags of llama-cli, llama-completion and llama-server: what duo makes of each. From llama.cpp's common/arg.cpp.

A line has a flag's spellings, a word for each value, and after `=` the values that ask for what duo does anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

SWITCH = "[on|off|auto]"  # a value that may be missing
SWITCH_VALUES = frozenset(["on", "off", "auto", "true", "false", "enabled", "disabled", "1", "0", "-1"])


class LlamaFlag(NamedTuple):
    """A flag that duo does not have."""

    names: tuple[str, ...]
    n_values: int
    optional: bool  # the value may be missing; then it is one of SWITCH_VALUES
    harmless: tuple[str, ...]  # values with which it asks for what duo does anyway
    instead: str  # why it is refused and what to use instead; empty: it is accepted and has no effect

    def is_refused(self, value: str | None, command: str) -> bool:
        """Whether a command refuses it, with its last value; the empty name is `duo` itself."""
        if not self.instead or command in HARMLESS_FOR.get(self.names[0], ()):
            return False
        return not any(_same(value, harmless) for harmless in self.harmless)


def _same(value: str | None, other: str) -> bool:
    try:
        return value is not None and float(value) == float(other)
    except ValueError:
        return value == other


# Options that duo has under the same names. Those of `duo lead` alone come last.
ACCEPTED = """
-h --help | --version | --list-devices | --offline | -v --verbose | --log-file | -m --model | -hf -hfr --hf-repo
-md --model-draft --spec-draft-model | -hfd -hfrd --hf-repo-draft | -p --prompt | -f --file | -sys --system-prompt
-e --escape --no-escape | -r --reverse-prompt | -n --predict --n-predict | --ignore-eos
--display-prompt --no-display-prompt | -st --single-turn | -cnv --conversation -no-cnv --no-conversation
-i --interactive | --color | -s --seed | --temp --temperature | --top-k | --top-p | --min-p | --typical --typical-p
--samplers | --repeat-penalty | --repeat-last-n | --presence-penalty | --frequency-penalty | -l --logit-bias
--grammar | --grammar-file | -j --json-schema | -jf --json-schema-file
--draft --draft-n --draft-max --spec-draft-n-max | -t --threads | -tb --threads-batch | -td --threads-draft
-Cr --cpu-range | -Crd --cpu-range-draft | -c --ctx-size | -b --batch-size | -ub --ubatch-size | -fa --flash-attn
-ctk --cache-type-k | -ctv --cache-type-v | --mlock | --mmap --no-mmap | --warmup --no-warmup
-ngl --gpu-layers --n-gpu-layers | -ngld --gpu-layers-draft --n-gpu-layers-draft | -dev --device
-devd --device-draft --spec-draft-device | -sm --split-mode | -ts --tensor-split | -mg --main-gpu | --rpc | --host
--port | --api-key | --api-key-file | -a --alias
"""

# Spellings of llama.cpp for options that duo calls differently.
ALIASES = {
    "-co": "--color", "--usage": "--help", "--log-verbose": "--verbose", "--spec-draft-hf": "--hf-repo-draft",
    "--spec-draft-threads": "--threads-draft", "--spec-draft-cpu-range": "--cpu-range-draft",
    "--spec-draft-ngl": "--gpu-layers-draft", "--ui": "--page", "--webui": "--page", "--no-ui": "--no-page",
    "--no-webui": "--no-page",
}  # fmt: skip

# Accepted: these only change the speed, the log, or what duo does anyway.
NO_EFFECT = """
--jinja | --no-jinja | --skip-chat-parsing | --no-skip-chat-parsing | --simple-io | -mli --multiline-input | --perf
--no-perf | --show-timings | --no-show-timings | --verbose-prompt | -ptc --print-token-count N | --log-disable
-lv --verbosity --log-verbosity N | --log-colors [on|off|auto] | --log-jsonl | --no-log-jsonl | --log-prefix
--no-log-prefix | --log-timestamps | --no-log-timestamps | --keep N | --no-context-shift | --swa-full
-kvo --kv-offload | -dt --defrag-thold N | --repack | -nr --no-repack | --no-host | --op-offload | --no-op-offload
--check-tensors | --numa TYPE | -dio --direct-io | -ndio --no-direct-io | -lzm --lazy-mode MODE
-fit --fit [on|off|auto] | -fitt --fit-target MIB | -fitc --fit-ctx N | --cpu-strict B | --prio N | --poll N
-Cb --cpu-mask-batch M | -Crb --cpu-range-batch LO-HI | --cpu-strict-batch B | --prio-batch N | --poll-batch N
-bs --backend-sampling | -tbd --threads-batch-draft --spec-draft-threads-batch N
--cpu-strict-draft --spec-draft-cpu-strict B | --prio-draft --spec-draft-prio N | --poll-draft --spec-draft-poll B
-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch M
-Crbd --cpu-range-batch-draft --spec-draft-cpu-range-batch LO-HI
--cpu-strict-batch-draft --spec-draft-cpu-strict-batch B | --prio-batch-draft --spec-draft-prio-batch N
--poll-batch-draft --spec-draft-poll-batch B | --spec-draft-backend-sampling | --no-spec-draft-backend-sampling
-ctkd --cache-type-k-draft --spec-draft-type-k TYPE | -ctvd --cache-type-v-draft --spec-draft-type-v TYPE
--spec-default | --draft-p-split --spec-draft-p-split P | --draft-min --draft-n-min --spec-draft-n-min N
--draft-p-min --spec-draft-p-min P | --spec-synth-len L | --spec-synth-rates P0,P1 | -cd --ctx-size-draft N
--spec-ngram-size-n N | --spec-ngram-size-m N | --spec-ngram-min-hits N | --spec-ngram-mod-n-min N
--spec-ngram-mod-n-max N | --spec-ngram-mod-n-match N | --spec-ngram-simple-size-n N | --spec-ngram-simple-size-m N
--spec-ngram-simple-min-hits N | --spec-ngram-map-k-size-n N | --spec-ngram-map-k-size-m N
--spec-ngram-map-k-min-hits N | --spec-ngram-map-k4v-size-n N | --spec-ngram-map-k4v-size-m N
--spec-ngram-map-k4v-min-hits N | -lcs --lookup-cache-static FILE | -lcd --lookup-cache-dynamic FILE
--prompt-cache FILE | --prompt-cache-all | --prompt-cache-ro | --no-mmproj --no-mmproj-auto | --mmproj-auto
--mmproj-offload | --no-mmproj-offload | --xtc-threshold N | --dry-base N | --dry-allowed-length N
--dry-penalty-last-n N | --dry-sequence-breaker TEXT | --adaptive-decay N | --dynatemp-exp N | --mirostat-lr N
--mirostat-ent N | -cb --cont-batching | -nocb --no-cont-batching | -kvu --kv-unified | -no-kvu --no-kv-unified
--cache-prompt | --no-cache-prompt | --cache-reuse N | -cram --cache-ram N | --cache-idle-slots
--no-cache-idle-slots | --kv-unified-per-slot N | -ctxcp --ctx-checkpoints --swa-checkpoints N
-cms --checkpoint-min-step N | -sps --slot-prompt-similarity X | --metrics | --no-slots | --threads-http N
-to --timeout N | --sse-ping-interval N | --reuse-port | --no-prefill-assistant
--no-ui-mcp-proxy --no-webui-mcp-proxy | -no-ag --no-agent | --tags LIST
"""

# Refused, with the reason and what to use instead.
NOT_HERE = {
    "no LoRA adapters here: merge it into a copy of the model (llama-export-lora of llama.cpp) and give that to -m":
        "--lora FILE | --lora-scaled FILE:SCALE | --lora-init-without-apply",
    "no control vectors here: use llama.cpp for this":
        "--control-vector FILE | --control-vector-scaled FILE:SCALE | --control-vector-layer-range START END",
    "duo uses the RoPE scaling in the model file: take a file that was converted for long contexts":
        "--rope-scaling TYPE | --rope-scale N | --rope-freq-base N = 0 | --rope-freq-scale N | "
        "--yarn-orig-ctx N = 0 | --yarn-ext-factor N = -1 | --yarn-attn-factor N = -1 | --yarn-beta-slow N = -1 | "
        "--yarn-beta-fast N = -1 | -gan --grp-attn-n N = 1 | -gaw --grp-attn-w N",
    "duo uses the model file as it is: change a copy of it with gguf-set-metadata, of the Python package gguf":
        "--override-kv KEY=TYPE:VALUE",
    "duo chooses the source of candidates itself: -md FILE for a draft model, --lookup auto|off for n-grams":
        "--spec-type TYPE = draft-simple",
    "duo generates one text after the other, each as fast as it can; duo lead lets requests wait (--queue N)":
        "-np --parallel N = 1 = -1 | -ns --sequences N = 1",
    "duo lead has no /slots: GET /metrics has its figures": "--slots",
    "duo lead starts a new answer after a final message of the assistant: use /v1/completions to continue a text":
        "--prefill-assistant",
    "duo places whole layers: use -ngl, -ngld, -ts or -dev":
        "-ot --override-tensor NAME=TYPE | -cmoe --cpu-moe | -ncmoe --n-cpu-moe N = 0 | "
        "-ncffn --n-cpu-ffn N = 0 | -otd --override-tensor-draft --spec-draft-override-tensor NAME=TYPE | "
        "-cmoed --cpu-moe-draft --spec-draft-cpu-moe | "
        "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe N = 0",
    "the KV cache of a layer is where the layer is: use a smaller -ngl or -c": "-nkvo --no-kv-offload",
    "name a range of cores instead: -Cr LO-HI for the target, -Crd LO-HI for the draft":
        "-C --cpu-mask M | -Cd --cpu-mask-draft --spec-draft-cpu-mask M",
    "use --mlock or --no-mmap": "-lm --load-mode MODE = auto = mmap",
    "text only here: use llama.cpp for images, audio and video":
        "-mm --mmproj FILE | -mmu --mmproj-url URL | -mmdev --mmproj-device NAME | --image FILE | --audio FILE | "
        "--video FILE | --image-min-tokens N | --image-max-tokens N | --mtmd-batch-max-tokens N | --video-fps N | "
        "--video-timestamp-interval N | --video-ffmpeg-dir DIR | --media-path DIR",
    "no such sampler here: --samplers has the list, with --temp, --top-k, --top-p, --min-p and --typical":
        "--top-nsigma --top-n-sigma N = -1 | --xtc-probability N = 0 | --dry-multiplier N = 0 | "
        "--adaptive-target N = -1 | --dynatemp-range N = 0 | --mirostat N = 0",
    "name the samplers: --samplers 'top_k;top_p;min_p;temperature'": "--sampler-seq --sampling-seq LETTERS",
    "duo uses the template in the model file: for another one, format the text yourself, and complete it "
    "(duo -p TEXT, or /v1/completions of duo lead)":
        "--chat-template NAME | --chat-template-file FILE",
    "only requests to duo lead set variables of the model's template (chat_template_kwargs, such as enable_thinking): "
    "elsewhere, say in the prompt how to think (for example /no_think)":
        "--chat-template-kwargs JSON | -rea --reasoning [on|off|auto] = on = auto | --reasoning-budget N = -1 | "
        "--reasoning-effort LEVEL = default | --reasoning-budget-message TEXT | --reasoning-preserve | "
        "--no-reasoning-preserve",
    "duo lead separates thoughts, unless a request has the reasoning_format none; duo prints them as they are written":
        "--reasoning-format FORMAT = auto",
    "in a chat, only the model's chat template formats the messages":
        "--in-prefix TEXT | --in-suffix TEXT | --in-prefix-bos | -if --interactive-first",
    "to chat: duo chat -m FILE (-m demo for the demo pair)": "-cnv --conversation | -i --interactive",
    "for one answer to a prompt: duo --chat -p TEXT":
        "-st --single-turn | -no-cnv --no-conversation",
    "special tokens are never printed": "-sp --special",
    "a text stops where the context is full: use a larger -c": "--context-shift",
    'read the file in the shell: -sys "$(cat FILE)"': "-sysf --system-prompt-file FILE",
    "prompts are text: use -f FILE, or -f - for standard input": "-bf --binary-file FILE | --in-file FILE",
    "the text goes to standard output: redirect it with > FILE": "-o --output --output-file FILE",
    "requests are not recorded here: let the client do it": "--log-prompts-dir DIR",
    "models come from files (-m) and from Hugging Face (-hf USER/REPO:QUANT): download it and use -m":
        "-mu --model-url URL | -dr --docker-repo NAME",
    "name the quantization instead: -hf USER/REPO:QUANT": "-hff --hf-file FILE",
    "set the variable HF_TOKEN, which other users cannot see": "-hft --hf-token TOKEN",
    "a server is named as in duo chat URL": "--server-base URL",
    "duo list shows the models in the caches": "-cl --cache-list",
    'add this line to ~/.bashrc: eval "$(_DUO_COMPLETE=source_bash duo)"': "--completion-bash",
    "duo generates text only: use llama-server for embeddings and reranking":
        "--embedding --embeddings | --rerank --reranking | --pooling TYPE | --embd-normalize N",
    "duo completes text only at its end": "--spm-infill",
    "duo lead has no TLS: put a reverse proxy with a certificate in front of it, see docs/security.md":
        "--ssl-key-file FILE | --ssl-cert-file FILE",
    "duo lead serves its API and its own page: serve other files and other paths with a reverse proxy":
        "--path DIR | --api-prefix PREFIX | --webui-config --ui-config JSON | "
        "--webui-config-file --ui-config-file FILE",
    "name the web sites whose pages may send requests: --cors-origin ORIGIN":
        "--cors-origins LIST | --cors-methods LIST | --cors-headers LIST | --cors-credentials | --no-cors-credentials",
    "duo lead runs no tools: let the client run them":
        "--tools LIST | --tools-runtime NAME | --mcp-servers-config FILE | --mcp-servers-json JSON | "
        "--webui-mcp-proxy --ui-mcp-proxy | -ag --agent",
    "a lead serves one model: start one for each, on different ports":
        "--models-dir DIR | --models-preset FILE | --models-max N | --models-autoload | --no-models-autoload",
    "the settings of a lead are its options; a request can set its own": "--props",
    "a lead keeps its cache in memory only": "--slot-save-path DIR",
    "a lead keeps its model loaded: stop it when it is not needed": "--sleep-idle-seconds N = -1",
    "name the model with -hf USER/REPO:QUANT":
        "--gpt-oss-20b-default | --gpt-oss-120b-default | --vision-gemma-4b-default | "
        "--vision-gemma-12b-default | --embd-gemma-default | --fim-qwen-1.5b-default | --fim-qwen-3b-default | "
        "--fim-qwen-7b-default | --fim-qwen-7b-spec | --fim-qwen-14b-spec | --fim-qwen-30b-default",
}  # fmt: skip

# Refused flags that ask these commands for what they do anyway.
HARMLESS_FOR = {
    "-cnv": ("chat",), "-i": ("chat",), "-no-cnv": ("bench", "check", "lead", "tune"),
}  # fmt: skip


def parts(text: str) -> Iterator[str]:
    """The flags of a text above, each with all that belongs to it."""
    for line in text.strip().splitlines():
        yield from filter(None, map(str.strip, line.split(" | ")))


@cache
def flags() -> dict[str, LlamaFlag]:
    """All flags that duo does not have, by each of their names."""
    found = [_read(part, instead) for instead, text in [("", NO_EFFECT), *NOT_HERE.items()] for part in parts(text)]
    return {name: flag for flag in found for name in flag.names}


def _read(part: str, instead: str) -> LlamaFlag:
    head, *harmless = part.split(" = ")
    words = head.split()
    names: Sequence[str] = [word for word in words if word.startswith("-")]
    return LlamaFlag(tuple(names), len(words) - len(names), SWITCH in words, tuple(harmless), instead)
