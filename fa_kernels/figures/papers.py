"""The papers behind the algorithms, as BibTeX, and which of them a figure shows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fa_kernels.figures.rungs import name_of
from fa_kernels.figures.theme import style_of
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.variants import VARIANTS

#: By the name that `Variant.source` and data/paper begin with.
PAPERS = {
    "FlashAttention": """@inproceedings{dao2022flashattention,
  title = {{FlashAttention}: Fast and Memory-Efficient Exact Attention with {IO}-Awareness},
  author = {Dao, Tri and Fu, Daniel Y. and Ermon, Stefano and Rudra, Atri and R{\\'e}, Christopher},
  booktitle = {Advances in Neural Information Processing Systems 35},
  year = {2022},
  eprint = {2205.14135},
  archivePrefix = {arXiv}
}""",
    "FlashAttention-2": """@inproceedings{dao2024flashattention2,
  title = {{FlashAttention-2}: Faster Attention with Better Parallelism and Work Partitioning},
  author = {Dao, Tri},
  booktitle = {International Conference on Learning Representations},
  year = {2024},
  eprint = {2307.08691},
  archivePrefix = {arXiv}
}""",
    "FlashAttention-3": """@inproceedings{shah2024flashattention3,
  title = {{FlashAttention-3}: Fast and Accurate Attention with Asynchrony and Low-Precision},
  author = {Shah, Jay and Bikshandi, Ganesh and Zhang, Ying and Thakkar, Vijay and Ramani, Pradeep
            and Dao, Tri},
  booktitle = {Advances in Neural Information Processing Systems 37},
  year = {2024},
  eprint = {2407.08608},
  archivePrefix = {arXiv}
}""",
    "Online softmax": """@misc{milakov2018online,
  title = {Online normalizer calculation for softmax},
  author = {Milakov, Maxim and Gimelshein, Natalia},
  year = {2018},
  eprint = {1805.02867},
  archivePrefix = {arXiv}
}""",
}


def checked_papers(names: Iterable[str]) -> list[str]:
    """`names`, each once, in the order of `PAPERS`.

    Raises:
        ValueError: one that is not there.
    """
    wanted = list(names)
    for name in wanted:
        if name not in PAPERS:
            raise ValueError(f"papers: {name!r} is not known here: use {', '.join(PAPERS)}.")
    return [name for name in PAPERS if name in wanted]


def papers_shown(series: Iterable[str], words: Iterable[str]) -> list[str]:
    """The papers of the algorithms that a figure shows, by its traces' names and its words.

    A variant's paper is its `source`, a peer's what its summary names. Words count where they hold
    the name that figures give an algorithm ("04 flash", "torch flash").
    """
    traces, text = set(series), "\n".join(words)
    said = []
    for name, baseline in BASELINES.items():
        label = style_of(name).label
        if name in traces or _holds(text, label):
            said.append(baseline.summary)
        text = re.sub(re.escape(label), "", text)  # "torch flash" is not our flash
    for variant in VARIANTS.values():
        if variant.name in traces or _holds(text, name_of(variant)) or _holds(text, variant.label):
            said.append(variant.source)
    found = {m[0] for one in said for m in re.finditer(r"FlashAttention(-\d)?", one)}
    # Figures that repeat a paper's own say which: "FlashAttention, table 9".
    found |= {name for name in PAPERS if re.search(rf"(?<![\w-]){name}, (table|fig)s?\b", text)}
    return [name for name in PAPERS if name in found]


def _holds(text: str, label: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(label)}(?![\w-])", text) is not None
