"""Every figure of the four papers and the headlines of their follow-ups: what the paper shows, which script makes it.

``spark`` is what was measured on real Spark, as written down in ``docs/results.md``; None where that was never run, and
where the script runs on Spark itself, so that its claims say it.
``key`` picks the claims of the script's output whose measurements stand for the figure.
"""

from __future__ import annotations

from dataclasses import dataclass

FOLLOW_UPS = "follow-ups"  # papers that came after the four, or that they are compared with; counted apart


@dataclass(frozen=True)
class Figure:
    """One figure, or several that one script makes."""

    paper: str
    number: str
    says: str
    script: str
    key: str = ""
    needs: str = ""  # "words" or "data": the option that it takes a file by
    spark: str | None = None
    spark_command: str = ""
    lab: bool = False  # made on Spark only, most of them on hosts of the lab: nothing is simulated


SQ_BENCH = "weir bench squirrel --spark --hosts 4 --words FILE --seconds 1 --zipf 1 2 --heterogeneity 4 8"
ST_BENCH = "weir bench stela --spark"
FIGURES = (
    Figure(
        "locality",
        "Fig. 7",
        "only locality-aware routing scales beyond 2; 20 kB: hashing falls from 1 to 2",
        "lar_fig07",
        lab=True,
    ),
    Figure(
        "locality",
        "Fig. 8",
        "hash flat, locality-aware rises and flattens above 90 %",
        "lar_fig08",
        lab=True,
    ),
    Figure(
        "locality",
        "Fig. 9",
        "the gap grows with padding and servers",
        "lar_fig09",
        lab=True,
    ),
    Figure("locality", "Fig. 10", "one hashtag, led by three states within days", "lar_fig10", needs="data"),
    Figure(
        "locality", "Fig. 11", "hash 16.6 %, offline 40 %, online 50 %, bound 75 %", "lar_fig11", needs="data"
    ),
    Figure("locality", "Fig. 12", "0.1 % of the pairs double the locality", "lar_fig12", needs="data"),
    Figure(
        "locality",
        "Fig. 13",
        "a reconfiguration gains at once, more with padding",
        "lar_fig13",
        lab=True,
        needs="data",
    ),
    Figure(
        "locality",
        "Fig. 14",
        "the gap grows with the number of servers",
        "lar_fig14",
        lab=True,
        needs="data",
    ),
    Figure(
        "Squirrel",
        "Figs. 3, 4",
        "rack ÷ 2.5, any ÷ 3.6 of the throughput within a process",
        "sq_fig03_04",
        lab=True,
    ),
    Figure(
        "Squirrel",
        "Figs. 7, 8",
        "1.60 × and −46 % (word count), 1.67 × and −50 % (advertising)",
        "sq_fig07_08",
        key="the throughput",
        needs="words",
        spark="1.80 ×, −45 % and 1.89 ×, −47 %",
        spark_command=SQ_BENCH,
    ),
    Figure(
        "Squirrel",
        "Fig. 9",
        "29 … 41 % less time",
        "sq_fig09",
        key="less time",
        needs="words",
        spark="−50 % on 52 MB (27.0 → 13.4 s)",
        spark_command=SQ_BENCH,
    ),
    Figure(
        "Squirrel",
        "Fig. 10",
        "WG softens the loss by skew, WG+DWC nearly removes it",
        "sq_fig10",
        key="nearly removes",
        spark="Zipf 1: 1.92 ×, −48 %; Zipf 2: 3.82 ×, −74 % (balanced weights 1.87 and 3.80 ×)",
        spark_command=SQ_BENCH,
    ),
    Figure(
        "Squirrel",
        "Fig. 11",
        "WG+DWC follows the machines' strength",
        "sq_fig11",
        key="follows",
        spark="slowest host at ¼: 1.93 ×, −48 % (word count), 2.15 ×, −53 % (advertising); at ⅛: 2.64 ×, −62 % and "
        "2.75 ×, −64 %, all with DWC; balanced weights −54, −59, −70 and −71 %",
        spark_command=SQ_BENCH,
    ),
    Figure("Squirrel", "none: micro-batches", "–", "sq_batches"),
    Figure(
        "CG", "Fig. 4", "PoRC and CH bounded by ε, memory near KG's", "cg_fig04", key="bounds the imbalance"
    ),
    Figure("CG", "Fig. 5", "messages per hour (no numbers)", "cg_fig05", key="swing", needs="words"),
    Figure("CG", "Fig. 6", "ε trades imbalance for memory", "cg_fig06", key="small ε", needs="words"),
    Figure(
        "CG",
        "Figs. 7, 8",
        "KG, PKG grow with n; CG bounded, memory below CH",
        "cg_fig07_08",
        key="CG's imbalance",
        needs="words",
    ),
    Figure(
        "CG",
        "Fig. 9",
        "CG keeps queues and latency very low, KG's grow",
        "cg_fig09",
        key="keeps both",
        needs="words",
    ),
    Figure(
        "CG",
        "Fig. 10",
        "CG close to zero imbalance on unequal workers",
        "cg_fig10",
        key="close to zero",
        needs="words",
    ),
    Figure(
        "CG",
        "Fig. 11",
        "no difference with 1 … 100 sources",
        "cg_fig11",
        key="imbalance does not",
        needs="words",
    ),
    Figure(
        "CG",
        "Fig. 12",
        "5 virtual workers too few, 1000 too slow, 100 best",
        "cg_fig12",
        key="100 give",
        needs="words",
    ),
    Figure(
        "CG",
        "Fig. 13",
        "CG adapts to two changes of capacity",
        "cg_fig13",
        key="adapts to change",
        needs="words",
    ),
    Figure(
        "CG",
        "Figs. 14, 15",
        "equal servers: KG behind, the others alike; two at 30 %: CG 3.44 × and half the latency of KG",
        "cg_fig14_15",
        key="Fig. 15: CG has",
        needs="words",
        lab=True,
    ),
    Figure(
        "Stela",
        "Fig. 4",
        "Star +65 %, Linear +45 %, Diamond +120 % over the default",
        "st_fig04",
        key="above the default",
        spark="+65 %, +42 %, +117 % over the default, which gains nothing",
        spark_command=ST_BENCH,
    ),
    Figure(
        "Stela",
        "Fig. 6",
        "PageLoad, Processing +125 % over the default, Network +21 %",
        "st_fig06",
        key="above the default",
        spark="+78 %, +66 %, +42 % over the default, which gains nothing",
        spark_command=ST_BENCH,
    ),
    Figure(
        "Stela",
        "Fig. 7",
        "convergence −92 %, −88 %, −75 %",
        "st_fig07",
        key="converg",
        spark="interruption 1.3 to 4.7 s (median 2.1), the new throughput with the next batch (5 to 10 s); the "
        "default, restarted, 0.9 to 2.7 s (1.3), least link load 0.8 to 3.2 s (1.1)",
        spark_command=ST_BENCH,
    ),
    Figure(
        "Stela",
        "Fig. 8",
        "8 → 4 machines: throughput kept, a random choice loses 40 to 80 %",
        "st_fig08",
        key="keeps the throughput",
        spark="100 % (31.7 → 31.8 rows/s), random 84 and 75 %",
        spark_command=ST_BENCH,
    ),
    Figure(
        FOLLOW_UPS,
        "FISH, Dalton",
        "FISH: −87 % latency, −76 % at p99 against W-Choices; Dalton: 1.3 to 6.7 × the throughput",
        "followup_groupings",
    ),
    Figure(
        FOLLOW_UPS,
        "DS2, Flink's autoscaler",
        "at most three decisions, and no instance more than it takes",
        "followup_scaling",
    ),
)
