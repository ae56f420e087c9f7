"""Whether a grouping keeps what it promises: what routers answer, and what they do with keys that are tried on them.

One that breaks them loses rows, or keeps a key twice, without an error. So an application with a grouping of the user's
is built only if that keeps them for some keys, and every answer of a router is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from weir.errors import GroupingError, WeirError, raised_at, said
from weir.hashing import hash_home, mix
from weir.routing.base import Grouping, InstanceLoad, Instances, Keys, Router, RouterContext

NAMES = ("CG", "KG", "LAR", "LSG", "PKG", "SG", "WG", "table")  # of the groupings of this package
TRIED = mix(np.arange(1000, dtype=np.uint64), np.uint64(0x7E57))


def answered(answer: Any, rows: int, n: int) -> Instances:
    """Return what a router has answered for so many rows; raise a GroupingError unless it is one of ``n`` for each."""
    instances = np.asarray(answer)
    if instances.shape != (rows,) or instances.dtype.kind not in "iu":
        got = f"{len(instances)} {instances.dtype} values" if instances.ndim == 1 else f"{answer!r:.80}"
        raise GroupingError(f"it answered {got} for {rows} keys; route must return an integer for each key")
    # as unsigned numbers, negative ones are too large: one pass is enough
    unsigned = instances.view(f"u{instances.dtype.itemsize}")
    if rows and unsigned.max() >= n:
        row = int(np.argmax(unsigned >= n))
        raise GroupingError(
            f"it answered instance {instances[row]} of {n} (row {row}); route must return 0 … n−1"
        )
    return instances.astype(np.int32, copy=False)


@contextmanager
def naming(who: str) -> Iterator[None]:
    """Let errors name the grouping that they are about, and make a GroupingError of any that is not Weir's."""
    try:
        yield
    except GroupingError as error:
        raise GroupingError(f"{who}: {error}") from None
    except WeirError:
        raise
    except Exception as error:
        raise GroupingError(f"{who}: {type(error).__name__}: {said(error)}{raised_at(error)}") from error


def check_name(grouping: Grouping) -> None:
    """Raise a GroupingError if a grouping has no name, or that of one of the library's."""
    kind, name = type(grouping), getattr(grouping, "name", None)
    if not isinstance(name, str):
        raise GroupingError(f'{kind.__name__} needs name = "…": progress and checkpoints know it by that')
    named = next((base for base in kind.__mro__ if "name" in vars(base)), kind)
    if name in NAMES and not named.__module__.startswith("weir.routing."):
        raise GroupingError(f"{grouping} needs another name: in checkpoints that is one of Weir's groupings")


def check_routers(grouping: Grouping, n: int, *, stateful: bool = True) -> None:
    """Raise a GroupingError if routers do not as the grouping says; unless ``stateful``, they may split keys."""
    far = np.where(np.arange(n) == n - 1, 0, 2).astype(np.int8) if grouping.uses_distances else None
    # so different are upstream instances, and the seeds of several edges to one operator
    contexts = RouterContext(n, 1 << 62, 0, -1), RouterContext(n, 3, 1, n - 1, far)
    routers = [grouping.make_router(context) for context in contexts]
    one, other = (np.append(ask(r, np.append(TRIED, TRIED[::-1])), ask(r, TRIED)) for r in routers)
    one, other = (np.stack([a, b[::-1], c]) for a, b, c in (np.split(out, 3) for out in (one, other)))
    in_turn = (one != one[0]).any(axis=0) | (other != other[0]).any(axis=0)
    several = in_turn | (one[0] != other[0])
    counting, needs = [router for router in routers if router.counters()], []
    if stateful and several.any() and not grouping.splits_keys:
        by_key = (
            "" if in_turn.any() else " (or to go by the key alone, not by seed, source, local or distances)"
        )
        needs.append(f"splits_keys = True{by_key}")
    if grouping.order_free and (counting or in_turn.any()):
        needs.append("order_free = False")
    if any(type(router).restore is Router.restore for router in counting):
        needs.append("restore(counters) on its router")
    if needs:
        at = int(np.argmax(several))
        to = np.unique([one[:, at], other[:, at]])
        what = f"rows of one key go to several instances (hash {TRIED[at]} to {to[0]} and {to[-1]})"
        what = what if several.any() else "its routers have counters()"
        raise GroupingError(f"{what}, so it needs {' and '.join(needs)}")
    if stateful and not grouping.splits_keys:
        _check_rule(grouping, routers[0])
    for router, context in zip(routers, contexts, strict=True):
        _check_replay(grouping, router, context)


def ask(router: Router, keys: Keys) -> Instances:
    """Return what a router answers, whatever it does to the array that it is handed."""
    return answered(router.route(keys.copy()), len(keys), router.n)


def _check_rule(grouping: Grouping, router: Router) -> None:
    """Refuse a rule by which a key lives elsewhere than its rows go."""
    n, rule = router.n, grouping.rule(router.n)
    if rule is None:
        return
    if len(rule.listed) != len(rule.instances) or not len(rule.homes):
        raise GroupingError(f"rule({n}) must name an instance for each listed key, and for each key group")
    some = slice(None, None, 1 + len(rule.listed) // 10_000)
    keys = np.append(TRIED, np.asarray(rule.listed, np.uint64)[some])
    by_rule = np.append(hash_home(TRIED, n, np.asarray(rule.homes)), np.asarray(rule.instances)[some])
    by_router = ask(router, keys)
    for at in np.flatnonzero(by_rule != by_router)[:1]:
        raise GroupingError(
            f"by rule({n}) the key with hash {keys[at]} lives on instance {by_rule[at]}, but its routers send it to "
            f"{by_router[at]}. Let both name the same instance: state moves by rule, rows go by route"
        )


def _check_replay(grouping: Grouping, router: Router, context: RouterContext) -> None:
    """Refuse a router that does not go on from its counters as it would have, and feedback that no plan can keep."""
    ask(router, TRIED[:7])
    if saved := router.counters():
        expected, again = ask(router, TRIED[::-1]), grouping.make_router(context)
        ask(again, TRIED[:7])  # whatever it did before must not matter
        again.restore(saved)
        if (ask(again, TRIED[::-1]) != expected).any():
            raise GroupingError(
                "a router that is restored from counters() does not go on as the original does"
            )
    if (told := grouping.feedback(InstanceLoad(1, *np.ones((3, router.n))))) is not None:
        router.listen(msgspec.json.decode(msgspec.json.encode(told)))
