"""The arithmetic task: prompts, demonstrations, and the reward that judges an answer.

A prompt is an expression of two operations and `=`. An answer works out both operations and then
states the result:

    prompt  12+34*2=
    answer   34*2=68; 12+68=80; answer 80

Demonstrations come from a careless teacher: each step's result is wrong in one digit with
probability SLIP, and the teacher then goes on from the wrong value. A model that imitates him and
is sampled at temperature 1 slips as often as he does, while the better answer stays the more
likely one: the gap that reinforcement learning can close. A share of the products has a second
factor of two or three digits, worked out in one step, which a model of this size masters in part.
"""

import re

SLIP = 0.2

# How often the second factor of `b*c` has one, two and three digits.
FACTOR_SHARES = (0.6, 0.3, 0.1)
_FACTOR_RANGES = ((2, 9), (11, 99), (101, 999))

_NUMBER = r"(\d+)"
_FORMS = (
    (re.compile(rf"{_NUMBER}\+{_NUMBER}\*{_NUMBER}="), lambda a, b, c: a + b * c),
    (re.compile(rf"{_NUMBER}\*{_NUMBER}-{_NUMBER}="), lambda a, b, c: a * b - c),
    (re.compile(rf"\({_NUMBER}\+{_NUMBER}\)\*{_NUMBER}="), lambda a, b, c: (a + b) * c),
)
_ANSWER = re.compile(r"; answer (-?\d+)$")


def make_prompt(rng):
    """Draws a prompt with `rng` (random.Random)."""
    a = rng.randint(1, 99)
    b = rng.randint(2, 99)
    form = rng.randrange(3)
    if form == 2:
        return f"({a}+{b})*{rng.randint(2, 9)}="
    c = rng.randint(*rng.choices(_FACTOR_RANGES, weights=FACTOR_SHARES)[0])
    if form == 1:
        return f"{b}*{c}-{rng.randint(1, min(99, b * c))}="
    return f"{a}+{b}*{c}="


def solve(prompt):
    """Returns the value of a prompt, or None if it is not one of this task."""
    for pattern, value in _FORMS:
        match = pattern.fullmatch(prompt)
        if match:
            return value(*map(int, match.groups()))
    return None


def reward(prompt, answer):
    """1.0 if `answer` (text after the prompt, without eos) ends by the right result, else 0.0."""
    match = _ANSWER.search(answer)
    return float(match is not None and int(match.group(1)) == solve(prompt))


def _maybe_slip(value, rng, slip):
    if rng.random() >= slip:
        return value
    digits = list(str(value))
    place = rng.randrange(len(digits))
    lowest = 1 if place == 0 and len(digits) > 1 else 0
    digits[place] = rng.choice([d for d in "0123456789"[lowest:] if d != digits[place]])
    return int("".join(digits))


def demonstrate(prompt, rng, slip=SLIP):
    """Returns the teacher's answer to `prompt`; with slip = 0 it is always right."""
    a, b, c = map(int, re.findall(r"\d+", prompt))
    if prompt.startswith("("):
        first, left, right = f"{a}+{b}", a + b, c
        inner = _maybe_slip(left, rng, slip)
        second, outer = f"{inner}*{right}", inner * right
    elif "-" in prompt:
        first, inner = f"{a}*{b}", _maybe_slip(a * b, rng, slip)
        second, outer = f"{inner}-{c}", inner - c
    else:
        first, inner = f"{b}*{c}", _maybe_slip(b * c, rng, slip)
        second, outer = f"{a}+{inner}", a + inner
    # A slip can make the difference negative; its sign is never what the teacher gets wrong.
    result = _maybe_slip(abs(outer), rng, slip) * (-1 if outer < 0 else 1)
    return f" {first}={inner}; {second}={result}; answer {result}"
