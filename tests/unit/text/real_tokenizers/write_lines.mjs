// Writes the lines that are encoded: deterministic, so that everybody compares the same ones.
//   lines.bin   text that every library reads alike, by kind
//   newer.bin   text with code points newer than Unicode 14
//   broken.bin  bytes that are not valid UTF-8
import {isNewer, newerRanges} from './code_points.mjs';
import {writeByteRecords} from './records.mjs';

const kLinesPerKind = 2000;
const out = process.argv[2];

// xorshift32, started anew for each kind.
let state = 1;
const random = (count) => {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % count;
};
const pick = (list) => list[random(list.length)];
const times = (low, high, make) => Array.from({length: low + random(high - low + 1)}, make);
const join = (low, high, make) => times(low, high, make).join('');
const inRanges = (ranges) => {
  const [low, high] = pick(ranges);
  return String.fromCodePoint(low + random(high - low + 1));
};
const anyCodePoint = () => {
  for (;;) {
    const c = random(pick([0x3000, 0x10000, 0x20000, 0x110000]));
    if ((c < 0xD800 || c > 0xDFFF) && !isNewer(c)) return String.fromCodePoint(c);
  }
};

const words = ('the of and reinforcement tokenizer deterministic Kernel GPU rollout I we you ' +
  'they it is naïve café résumé Zürich straße ΑΒΓ Привет мир antidisestablishmentarianism ' +
  'supercali ' +
  'x y z HTTPServer getElementById snake_case_name kebab-case-name __init__ 3D e.g. i.e. U.S.A.')
  .split(' ');
const contractions = ["'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'VE", "'m", "'M", "'ll",
  "'LL", "'Ll", "'d", "'D", "’s", "''s", "'x", "'"];
const spaces = [' ', ' ', ' ', '  ', '   ', '\t', '\n', '\r\n', '\n\n', '\r', '\u00A0', '\u3000',
  '\u2028', '\u2029', '\u0085', '\v', '\f', '\u1680', '\u2003', '\u202F', '\u205F', '\u180E',
  '\u200B', '\uFEFF'];
const punctuation = [...'.,;:!?-—–…()[]{}<>"\'`~@#$%^&*_+=|\\/'];
const code = ['int main() {', '\treturn 0;', '}', '    for (auto& x : xs) {', 'def f(self, *args):',
  '        yield x ** 2', '#include <vector>', '// comment: a != b && c', '/* block */',
  'a[i][j]+=1',
  'std::vector<std::pair<int, int>> v{{1, 2}};', 'print(f"{x!r:>{w}}")',
  'SELECT * FROM t WHERE a=1;',
  '<div class="a b">&nbsp;</div>', '"\\n\\t\\u00e9"', '0xFF & ~mask', 'x = y ? z : w;', '}}}}))));',
  '====================', '----------', '$HOME/.config', 'git commit -m "x"', '@decorator',
  '#!/bin/sh',
  '\\begin{align}', '\\frac{a}{b}', '{"k": [1, 2.5e-3, null]}', '=>', '->', '::', '...', '>>>'];
const cjk = [[0x4E00, 0x9FFF], [0x4E00, 0x9FFF], [0x3041, 0x3096], [0x30A1, 0x30FA],
  [0xAC00, 0xD7A3],
  [0x3400, 0x4DBF], [0x20000, 0x2A6DD], [0x3000, 0x303F], [0xFF01, 0xFF5E], [0xFF66, 0xFF9F],
  [0xF900, 0xFA6D], [0x2F800, 0x2FA1D], [0x3099, 0x309A], [0x31A0, 0x31BB], [0x3200, 0x32FE]];
const emoji = ['😀', '👍', '👍🏽', '👩‍💻', '👨‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪', '🇯🇵', '1️⃣', '#️⃣', '❤️', '❤',
  '☀︎', '🧑🏿‍🚀', '🫠', '🥲', '♻',
  '\u200D', '\uFE0F', '\u{1F3FB}', '\u{E0067}',
  '🏴\u{E0067}\u{E0062}\u{E0065}\u{E006E}\u{E0067}\u{E007F}'];
const emojiRanges = [[0x1F300, 0x1F64F], [0x1F680, 0x1F6D7], [0x1F900, 0x1F9FF], [0x2600, 0x27BF]];
const marks = [[0x300, 0x36F], [0x300, 0x36F], [0x591, 0x5BD], [0x64B, 0x65F], [0x93C, 0x93C],
  [0x1AB0, 0x1ABD], [0x1DC0, 0x1DFF], [0x20D0, 0x20F0], [0x3099, 0x309A], [0xFE20, 0xFE2F]];
const bases = [[0x41, 0x5A], [0x61, 0x7A], [0xC0, 0x17F], [0x391, 0x3C9], [0x410, 0x44F],
  [0x5D0, 0x5EA], [0x621, 0x64A], [0x904, 0x939], [0x958, 0x95F], [0x995, 0x9B9], [0xB95, 0xBB9],
  [0xE01, 0xE2E], [0x1100, 0x1112], [0x1161, 0x1175], [0x11A8, 0x11C2], [0xAC00, 0xD7A3],
  [0x1E00, 0x1EFF], [0x1F00, 0x1F15], [0x212A, 0x212B], [0x2126, 0x2126], [0x340, 0x344],
  [0x304B, 0x3062], [0x9C7, 0x9D7], [0x1D15E, 0x1D164], [0x2ADC, 0x2ADC], [0xFB1D, 0xFB4E]];
const scripts = [[0x100, 0x24F], [0x250, 0x2AF], [0x370, 0x377], [0x388, 0x3FF], [0x400, 0x52F],
  [0x531, 0x556], [0x5D0, 0x5EA], [0x620, 0x6FF], [0x710, 0x74A], [0x780, 0x7B1], [0x904, 0x97F],
  [0xE01, 0xE3A], [0xE40, 0xE5B], [0xF00, 0xF47], [0x1000, 0x109F], [0x10A0, 0x10C5],
  [0x10D0, 0x10FF],
  [0x1200, 0x1248], [0x13A0, 0x13F5], [0x1780, 0x17DD], [0x1820, 0x1878], [0x2C00, 0x2C5F],
  [0x2D30, 0x2D67], [0xA000, 0xA48C], [0x10330, 0x1034A], [0x12000, 0x12399], [0x1D400, 0x1D454]];
const digits = [[0x30, 0x39], [0x30, 0x39], [0x30, 0x39], [0x660, 0x669], [0x966, 0x96F],
  [0xFF10, 0xFF19], [0xB2, 0xB3], [0xBC, 0xBE], [0x2070, 0x2070], [0x2074, 0x2079],
  [0x2150, 0x2188],
  [0x2460, 0x249B], [0x3021, 0x3029], [0x4E00, 0x4E00], [0x1D7CE, 0x1D7FF], [0x10107, 0x10133]];
const controls = [[0x00, 0x1F], [0x00, 0x1F], [0x7F, 0x9F], [0xAD, 0xAD], [0x200B, 0x200F],
  [0x2028, 0x202E], [0x2060, 0x206F], [0xFFF9, 0xFFFF], [0xFEFF, 0xFEFF], [0xE000, 0xE010],
  [0xFDD0, 0xFDEF], [0x1FFFE, 0x1FFFF], [0xE0001, 0xE0020], [0x10FFFE, 0x10FFFF]];
const added = ['<|im_start|>', '<|im_end|>', '<|endoftext|>', '<think>', '</think>', '<tool_call>',
  '</tool_response>', '<|vision_pad|>', '<|begin_of_text|>', '<|eot_id|>', '<|end_header_id|>',
  '<|reserved_special_token_250|>', '<|', '<', '|>', '<|im_', 'im_end|>', '<<|im_end|>>',
  '<THINK>'];

const sentence = () => join(3, 14, () => pick(words) + (random(4) ? '' : pick(contractions)) +
  (random(5) ? ' ' : pick(punctuation) + (random(2) ? ' ' : '')));
const kinds = {
  prose: sentence,
  contractions: () => join(2, 10, () => pick([...words, 'ſ', '\u212A', '\u017Ftop', '']) +
    pick(contractions) + pick(['', ' ', 'ly', 'ſ', 'X', '9', '\n'])),
  code: () => join(1, 5, () => ' '.repeat(random(9)) + '\t'.repeat(random(3)) + pick(code) +
    pick(['\n', '\n', '\n\n', '\r\n', ' ', ''])),
  cjk: () => join(4, 50, () => random(12) ? inRanges(cjk) : pick([' ', 'ASCII', '，', '。', '\n'])),
  emoji: () => join(2, 16, () => pick([pick(emoji), inRanges(emojiRanges), pick(words), ' '])),
  marks: () => join(2, 20, () => inRanges(bases) + join(0, 5, () => inRanges(marks))),
  controls: () => join(3, 30, () => pick([inRanges(controls), inRanges(controls), 'a', ' ', '1'])),
  spaces: () => join(2, 20, () => pick(spaces).repeat(1 + random(random(8) ? 3 : 40)) +
    (random(3) ? '' : pick([...words, '7', '!']))),
  digits: () => join(1, 8, () =>
    join(1, 12, () => random(8) ? String(random(10)) : inRanges(digits)) +
    pick(['', '.', ',', ' ', '-', 'e', '%', 'x', '/', ':'])),
  scripts: () => join(3, 30, () => random(6) ? inRanges(scripts) : pick([' ', '.', '-', '\u0301'])),
  added: () => join(2, 9, () => pick([pick(added), pick(added), pick(words), pick(spaces), 'é'])),
  any: () => join(1, 40, anyCodePoint),
  mixed: () => join(2, 8, () => pick([sentence, () => pick(code), () => inRanges(cjk), anyCodePoint,
    () => pick(emoji), () => pick(spaces), () => String(random(1e6)), () => pick(added)])()),
};

const lines = [];
Object.values(kinds).forEach((make, index) => {
  state = 1000003 * (index + 1);
  for (let i = 0; i < kLinesPerKind; ++i) lines.push(make());
});
for (const unit of ['a', ' ', '\n', '0', '!', '中', 'é', 'e\u0301', '😀', "'s", 'ab', '\t ',
  '\u0000']) {
  lines.push(unit.repeat(3000));
}
lines.push('', 'Hello, world!');
writeByteRecords(`${out}/lines.bin`, lines);

state = 77;
writeByteRecords(`${out}/newer.bin`, times(500, 500, () =>
  join(1, 12, () => pick([inRanges(newerRanges), inRanges(newerRanges), pick(words), ' ', '12']))));

// Valid text with bytes overwritten, cut off or put in, and plain noise around the lead bytes.
state = 99;
const leads = [0xC0, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF];
const noise = () =>
  pick([pick(leads), pick(leads), 0x80 + random(64), 0x80 + random(64), random(256)]);
const broken = times(20000, 20000, () => {
  if (random(2)) return Buffer.from(times(1, 24, noise));
  const bytes = Buffer.from(pick(Object.values(kinds))());
  for (const at of times(1, 4, () => random(bytes.length || 1))) bytes[at] = noise();
  return bytes.subarray(random(3), bytes.length - random(3));
});
writeByteRecords(`${out}/broken.bin`, broken);
