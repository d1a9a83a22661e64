"""How hard is this request? A first scorer of a few readable features; pure, and linear in a bounded piece of text.

It looks at the last user turn above all, because that is what the answer has to deal with, and at whether that turn
repeats an earlier one: a user who asks again was not served well the first time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tiergate.tiers import ChatRequest, Message

Class = Literal["trivial", "simple", "medium", "hard"]
"""Bands of the score, in rising order."""

HEAD: Final = 6000
TAIL: Final = 2000
"""Characters read from the two ends of a text. What lies between rarely changes what is being asked."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


CODE_WORDS = _set(
    "def class return import function const public static void select from printf include lambda async await elif "
    "struct int str null none self std println console.log regex sql python javascript java rust bash code bug compile "
    "stack trace exception api json html css"
)
CODE_SIGNS = ("```", "();", "){", ") {", "=>", "->", "==", "!=", "://", "</", "/*", "#include", "o(n")
MATHS_WORDS = _set(
    "integral derivative equation equations theorem matrix probability polynomial modulo prime primes triangle "
    "velocity voltage percent percentage ratio average sum difference product solve compute calculate evaluate "
    "function vector "
    "mass energy joules newtons angle radius area volume speed distance remainder divisible digits integer integers "
    "expected variance logarithm converges"
)
MATHS_SIGNS = ("\\frac", "\\sum", "\\int", "\\sqrt", "\\begin", "\\(", "$", "^", " = ", "=", "how many", "how much")
STEP_WORDS = _set(
    "prove proof derive deduce why explain analyze analyse compare contrast tradeoff tradeoffs design plan strategy "
    "debug refactor optimize optimise implement algorithm architecture evaluate justify assume suppose given therefore "
    "implies hypothesis diagnose diagnosis first then finally because consequences effect cause respectively "
    "increases decreases"
)
STEP_SIGNS = ("step by step", "step-by-step", "which of the following", "pros and cons", "trade-off")
BOUND_WORDS = _set(
    "must exactly least most without only except unless each every constraint constraints requirement requirements "
    "ensure should not all"
)
NUMBER = re.compile("[0-9]+")
PUNCTUATION = str.maketrans(dict.fromkeys(",.!?:()[]{}\"'`*", " "))
SMALL_TALK = re.compile(
    r"\s*(?:hi|hello|hey|thanks?|thank you|ok(?:ay)?|yes|no|bye|good (?:morning|evening|night)|how are you"
    r"|who are you|what(?:'s| is) your name|tell me a joke)\b[^\n]{0,40}\s*",
    re.IGNORECASE,
)
LOOK_UP = re.compile(
    r"\s*(?:what(?:'s| is| are)|who(?:'s| is| was)|when (?:is|was|did)|where (?:is|was)|define|translate|spell|name"
    r"|list|rewrite|correct|summari[sz]e)\b",
    re.IGNORECASE,
)
WORK_OUT = re.compile(
    r"\s*(?:please |can you |could you |help me )?(?:prove|derive|show that|design|debug|refactor|implement|optimi[sz]e"
    r"|analy[sz]e|compare|diagnose|plan|solve|work out|explain why|beweise?|démontre[rz]?|demuestra)\b",
    re.IGNORECASE,
)
AGAIN = re.compile(
    r"\s*(?:no[,.! ]|wrong|that(?:'s| is)? (?:not|wrong|incorrect)|incorrect|try again|again[,.! ]|are you sure"
    r"|you (?:made|forgot|missed|didn't)|still (?:not|wrong|doesn't|fails)|it (?:still )?doesn't)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the scorer sees of the last user turn; `code` to `bounds` count different words and signs of their kind."""

    words: int
    code: int
    maths: int
    steps: int
    bounds: int
    questions: int
    """Question marks."""
    lines: int
    """Line breaks."""
    small_talk: bool
    look_up: bool
    """It opens like a request for a fact or a rewording."""
    work_out: bool
    """It opens like a request for something that has to be worked out."""
    turns: int
    """User turns of the conversation."""
    again: bool
    """The user says that the last answer was wrong, or repeats an earlier question."""
    tools: int
    """Tools that the model may call."""


@dataclass(frozen=True, slots=True)
class Complexity:
    score: float
    """0 (anything will do) to 1 (needs the deepest tier)."""
    label: Class
    signs: tuple[str, ...]
    """The features that raised the score most, strongest first."""


def features(request: ChatRequest) -> Features:
    users = [message for message in request.messages if message.role == "user"]
    last = users[-1].content if users else ""
    text = last if len(last) <= HEAD + TAIL else f"{last[:HEAD]}\n{last[-TAIL:]}"
    lower = text.lower()
    words = lower.translate(PUNCTUATION).split()
    bag = frozenset(words)
    return Features(
        # About six characters a word, for what the cut hides and for scripts without spaces.
        words=max(len(words), len(last) // 6),
        code=_signs(bag, CODE_WORDS, lower, CODE_SIGNS),
        maths=_signs(bag, MATHS_WORDS, lower, MATHS_SIGNS) + min(len(NUMBER.findall(text)) // 2, 3),
        steps=_signs(bag, STEP_WORDS, lower, STEP_SIGNS),
        bounds=len(bag & BOUND_WORDS),
        questions=text.count("?"),
        lines=text.count("\n"),
        small_talk=len(text) < 80 and SMALL_TALK.fullmatch(text) is not None,
        look_up=LOOK_UP.match(text) is not None,
        work_out=WORK_OUT.match(text) is not None,
        turns=len(users),
        again=len(users) > 1 and (AGAIN.match(text) is not None or _repeats(users)),
        tools=len(request.tools),
    )


def classify(request: ChatRequest) -> Complexity:
    return score(features(request))


def score(found: Features) -> Complexity:
    """A logistic of saturating features: ten signs of maths say little more than five do."""
    parts = {
        "long": 0.55 * math.log1p(found.words / 12),
        "code": 0.75 * _few(found.code),
        "maths": 0.95 * _few(found.maths),
        "multi-step": 0.8 * _few(found.steps),
        "constraints": 0.45 * _few(found.bounds),
        "many questions": 0.3 * _few(max(0, found.questions - 1)),
        "layout": 0.15 * math.log1p(found.lines),
        "to be worked out": 1.4 * found.work_out,
        "asks again": 1.5 * found.again,
        "long conversation": 0.1 * min(found.turns - 1, 8) if found.turns else 0.0,
        "tools": 0.4 if found.tools else 0.0,
    }
    total = -3.0 + sum(parts.values()) - 2.5 * found.small_talk - 0.5 * found.look_up
    value = 1 / (1 + math.exp(-total))
    signs = sorted((name for name, part in parts.items() if part >= 0.4), key=lambda name: -parts[name])
    return Complexity(value, label_of(value), tuple(signs[:3]))


def label_of(value: float) -> Class:
    if value < 0.1:
        return "trivial"
    if value < 0.35:
        return "simple"
    return "medium" if value < 0.5 else "hard"


def _few(count: int) -> float:
    """0 for none, 1 for one, levelling off at about 3."""
    return math.log2(1 + min(count, 8))


def _signs(bag: frozenset[str], words: frozenset[str], text: str, signs: tuple[str, ...]) -> int:
    """How many different words and signs of a kind occur."""
    found = len(bag & words)
    for sign in signs:
        if sign in text:
            found += 1
    return found


def _repeats(users: Sequence[Message]) -> bool:
    """Whether the last turn is mostly made of the words of one of the three before it."""
    last = _words(users[-1].content)
    if len(last) < 3:
        return False
    earlier = (_words(message.content) for message in users[-4:-1])
    return any(len(last & words) >= 0.8 * len(last | words) for words in earlier)


def _words(text: str) -> frozenset[str]:
    return frozenset(text[:HEAD].lower().translate(PUNCTUATION).split())
