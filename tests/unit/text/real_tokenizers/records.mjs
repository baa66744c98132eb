// Files of records, as the C++ test reads them: each is a little-endian u32 length and its payload.
import fs from 'node:fs';

export function writeByteRecords(path, records) {
  const parts = [];
  for (const record of records) {
    const bytes = Buffer.from(record);
    const length = Buffer.alloc(4);
    length.writeUInt32LE(bytes.length);
    parts.push(length, bytes);
  }
  fs.writeFileSync(path, Buffer.concat(parts));
}

export function readByteRecords(path) {
  const file = fs.readFileSync(path);
  const records = [];
  for (let at = 0; at < file.length;) {
    const length = file.readUInt32LE(at);
    records.push(file.subarray(at + 4, at + 4 + length));
    at += 4 + length;
  }
  return records;
}

// Ids: u32 count, then the ids as u32.
export function writeIdRecords(path, lists) {
  const size = lists.reduce((sum, ids) => sum + 4 + 4 * ids.length, 0);
  const file = Buffer.alloc(size);
  let at = 0;
  for (const ids of lists) {
    at = file.writeUInt32LE(ids.length, at);
    for (const id of ids) at = file.writeUInt32LE(id, at);
  }
  fs.writeFileSync(path, file);
}
