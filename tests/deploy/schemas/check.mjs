// Checks Kubernetes objects, a JSON list on standard input, against two independent sets of models:
// kubernetes-models knows types and required fields, the client's models know all names of fields.
// Prints one finding a line.
// Usage: node check.mjs FOLDER_WITH_NODE_MODULES
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const root = pathToFileURL(resolve(process.argv[2], 'node_modules'));
const models = `${root}/@kubernetes/client-node/dist/gen/models`;
const fieldsOf = new Map();

async function fields(type) {
  if (!/^(V\d|Core|Int)/.test(type) || type === 'IntOrString') return undefined;
  if (!fieldsOf.has(type)) {
    fieldsOf.set(type, (await import(`${models}/${type}.js`))[type].getAttributeTypeMap());
  }
  return fieldsOf.get(type);
}

async function findUnknown(value, type, path, findings) {
  const list = /^Array<(.*)>$/.exec(type);
  const map = /^\{ \[key: string\]: (.*); \}$/.exec(type);
  if (list && Array.isArray(value)) {
    for (const [i, item] of value.entries()) {
      await findUnknown(item, list[1], `${path}[${i}]`, findings);
    }
    return;
  }
  if (value === null || typeof value !== 'object') return;
  if (map) {
    for (const [key, item] of Object.entries(value)) {
      await findUnknown(item, map[1], `${path}.${key}`, findings);
    }
    return;
  }
  const known = await fields(type);
  for (const [key, item] of known === undefined ? [] : Object.entries(value)) {
    const field = known.find((one) => one.baseName === key);
    if (field === undefined) findings.push(`unknown field ${path}.${key} of ${type}`);
    else await findUnknown(item, field.type, `${path}.${key}`, findings);
  }
}

// kubernetes-models has a folder for each group and version.
async function findWrong(object, findings) {
  const path = `${root}/kubernetes-models/${object.apiVersion}/${object.kind}.js`;
  const Model = (await import(path))[object.kind];
  try {
    new Model(object).validate();
  } catch (error) {
    findings.push(error.message);
  }
}

let found = 0;
for (const object of JSON.parse(readFileSync(0, 'utf8'))) {
  const findings = [];
  const version = object.apiVersion.split('/').at(-1);
  const type = version.replace(/^v/, 'V') + object.kind;
  try {
    await findWrong(object, findings);
    await findUnknown(object, type, object.kind, findings);
  } catch (error) {
    findings.push(error.message);
  }
  for (const finding of findings) {
    console.log(`${object.kind} ${object.metadata?.name}: ${finding}`);
    found += 1;
  }
}
process.exitCode = found === 0 ? 0 : 1;
