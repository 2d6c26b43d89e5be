"""How much of JSON Schema grammars support: python -m benchmarks.schemas FOLDER [--model FILE] [--verbose].

FOLDER: tests/draft2020-12 of the JSON Schema test suite (json-schema-org/JSON-Schema-Test-Suite), whose required tests
are the files directly in it. A schema is right if the grammar allows some spelling of each valid instance (the keys of
an object in some order, 1 for 1.0), and none of an invalid one.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from duo.config import ModelConfig
from duo.errors import DuoError
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from duo.models.demo import demo_pair

MOST = 200  # spellings that are tried


def spellings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            for values in itertools.product(*([*itertools.islice(spellings(value[key]), 4)] for key in keys)):
                pairs = zip(keys, values, strict=True)
                yield f"{{{','.join(f'{json.dumps(key, ensure_ascii=False)}:{one}' for key, one in pairs)}}}"
    elif isinstance(value, list):
        for values in itertools.product(*([*itertools.islice(spellings(one), 4)] for one in value)):
            yield f"[{','.join(values)}]"
    else:
        yield json.dumps(value, ensure_ascii=False)
        if isinstance(value, float) and value.is_integer():
            yield str(int(value))


def allows(model: Model, text: str, data: str, times: list[float]) -> bool:
    grammar, logits = Grammar(model, text), np.zeros(model.n_vocab, np.float32)
    for token in model.fragment(data.encode()):
        began = time.perf_counter()
        grammar.mask(logits)
        times.append(time.perf_counter() - began)
        if not grammar.allows(token):
            return False
        grammar.accept(token)
    return grammar.allows(model.eos)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="tests/draft2020-12 of the suite")
    parser.add_argument("--model", type=Path, default=demo_pair()[1], help="whose vocabulary is used")
    parser.add_argument("--verbose", action="store_true", help="name the instances that are wrong")
    options = parser.parse_args()
    n = n_accepted = n_right = n_unsound = 0
    times: list[float] = []
    with closing(Model(ModelConfig(options.model), vocabulary_only=True)) as model:
        for path in sorted(options.folder.glob("*.json")):
            for case in json.loads(path.read_text()):
                n += 1
                try:
                    text = schema_grammar(json.dumps(case["schema"]), "the schema")
                except DuoError:
                    continue
                n_accepted += 1
                wrong = []
                for test in case["tests"]:
                    several = itertools.islice(spellings(test["data"]), MOST)
                    if any(allows(model, text, one, times) for one in several) != test["valid"]:
                        wrong.append(test)
                n_right += not wrong
                n_unsound += any(not test["valid"] for test in wrong)
                if options.verbose and wrong:
                    print(path.name, json.dumps(case["schema"])[:200], *(json.dumps(one["data"]) for one in wrong))
    print(f"{n} schemas, {n_accepted} accepted; of these {n_right} right, {n_unsound} allow something invalid")
    print(f"a mask of {model.n_vocab} tokens: {median(times) * 1e6:.0f} µs (median), {max(times) * 1e3:.1f} ms at most")


if __name__ == "__main__":
    main()
