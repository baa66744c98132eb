"""The training corpus: an endless mix of short documents, packed into sequences of any length.

Most documents are arithmetic (task.py). The rest teaches what tests of a serving system need: long
answers, few-shot prompts that fill the context, and text in characters of two to four bytes.
"""

import random

import numpy as np

import task

EMOJI_PROMPT = "Say it with emoji:"
STORY_PROMPT = "Tell me a story:"
GREETING_PROMPT = "Greet the world:"
FEW_SHOT_HEADER = "Examples:\n"

_ANIMALS = "cat 🐱|dog 🐶|fox 🦊|bear 🐻|panda 🐼|frog 🐸|owl 🦉|whale 🐳|bee 🐝|horse 🐴".split("|")
_FOODS = "tea 🍵|bread 🍞|an apple 🍎|soup 🍲|a cake 🍰|rice 🍚|honey 🍯|cheese 🧀".split("|")
_WEATHER = "sunny ☀|snowing ❄|raining 🌧|windy 🍃|warm 🔥|a clear night 🌙".split("|")
_PLACES = "Zürich|São Paulo|Kraków|東京|Москва|Αθήνα|Málaga|서울|Reykjavík|Paris|Oslo".split("|")
_FACES = "😀 😂 😍 🤔 😴 🥳 😎 🚀 🎉 ❤ 👍 🌈".split()
_GREETINGS = (
    "Hello, world!|Grüß dich, Welt!|¡Hola, mundo!|Bonjour, le monde ça va!|Olá, você!|"
    "Привет, мир!|Γειά σου, κόσμε!|你好,世界!|こんにちは、世界!|안녕, 세상!|שלום עולם!|नमस्ते!"
).split("|")
_MOODS = "happy little old clever sleepy brave quiet curious hungry young".split()
_VERBS = "sees finds likes shares wants makes brings loves".split()

_ENGLISH = """
The quick brown fox jumps over the lazy dog. Once upon a time there was a small house by the river,
and in the house there lived people who would work all day and then sit together and talk about what
they had seen. What is the answer to this question? Please think step by step and give the number of
things that you can count. It is not a problem to try again when the first result was wrong, because
each attempt should teach you something new. I have been there with you before, and we were happy
to help them. The model returns tokens and the probability of each; the same request gives the same
answer, whatever else is running. Which one do they want? More of them, for their own good, from \
here
to the other side, as long as some light is left.
"""


def _arithmetic(rng):
    prompt = task.make_prompt(rng)
    return prompt + task.demonstrate(prompt, rng)


def few_shot(rng, lines):
    """A block of solved examples, one a line, that ends without a line break."""
    return FEW_SHOT_HEADER + "\n".join(_arithmetic(rng) for _ in range(lines))


def _sentence(rng):
    kind = rng.randrange(3)
    animal = f"{rng.choice(_MOODS)} {rng.choice(_ANIMALS)}"
    if kind == 0:
        return f"The {animal} {rng.choice(_VERBS)} {rng.choice(_FOODS)} in {rng.choice(_PLACES)}."
    if kind == 1:
        return f"It is {rng.choice(_WEATHER)} in {rng.choice(_PLACES)}, and the {animal} is here."
    return f"The {animal} {rng.choice(_VERBS)} a {rng.choice(_MOODS)} {rng.choice(_ANIMALS)}."


def _emoji(rng):
    parts = []
    for _ in range(rng.randint(1, 4)):
        faces = "".join(rng.choices(_FACES, k=rng.randint(1, 4)))
        parts.append(f"{_sentence(rng)} {faces}")
    return f"{EMOJI_PROMPT} {' '.join(parts)}"


def _story(rng):
    sentences = " ".join(_sentence(rng) for _ in range(rng.randint(5, 20)))
    return f"{STORY_PROMPT} Once upon a time. {sentences} The end."


def _greeting(rng):
    return f"{GREETING_PROMPT} {' '.join(rng.sample(_GREETINGS, rng.randint(1, 5)))}"


def _counting(rng):
    last = rng.randint(1, 120)
    return f"Count to {last}: {' '.join(str(i) for i in range(1, last + 1))}"


def document(rng, tokens_max):
    """Draws the text of one document; only few-shot blocks grow with `tokens_max`."""
    kind = rng.random()
    if kind < 0.88:
        return _arithmetic(rng)
    if kind < 0.91:
        # Log-uniform, so that every length of prompt is seen; a line is about 34 tokens.
        lines_max = max(2, tokens_max // 34)
        return few_shot(rng, round(2 * (lines_max / 2) ** rng.random()))
    if kind < 0.94:
        return _emoji(rng)
    if kind < 0.96:
        return _greeting(rng)
    return _story(rng) if kind < 0.98 else _counting(rng)


def tokenizer_text(seed, documents=4000):
    """The text from which the merges are learnt."""
    rng = random.Random(seed)
    return _ENGLISH * 20 + "\n".join(document(rng, 256) for _ in range(documents))


def pack(rng, tokenizer, tokens):
    """Fills one sequence of `tokens` ids with documents, each ended by eos, the last one cut."""
    ids = []
    while len(ids) < tokens:
        ids += tokenizer.encode(document(rng, tokens))
        ids.append(tokenizer.eos_id)
    return ids[:tokens]


def batch(rng, tokenizer, tokens_batch):
    """One training batch: short sequences mostly, so that answers at position 0 are well trained,
    and long ones often enough that attention holds over the whole context."""
    tokens = min(tokens_batch, rng.choices((256, 2048, 8192), weights=(75, 15, 10))[0])
    rows = tokens_batch // tokens
    return np.array([pack(rng, tokenizer, tokens) for _ in range(rows)], dtype=np.int16)
