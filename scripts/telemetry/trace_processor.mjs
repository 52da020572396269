// Perfetto's trace processor under Node: loads a trace and prints the rows of SQL queries as JSON.
//
//     node scripts/telemetry/trace_processor.mjs WEB_DIST TRACE QUERY...
//
// WEB_DIST is a folder of Perfetto's user interface with engine_bundle.js and trace_processor.wasm.
// Its engine is made for a worker of a browser and speaks protocol buffers over a message port
// (protos/perfetto/trace_processor/trace_processor.proto); both are written here as far as needed.

import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

const [folder, trace, ...queries] = process.argv.slice(2);
const exit = process.exit.bind(process);

// Methods and fields of TraceProcessorRpc.
const APPEND = 1, FINALIZE = 2, QUERY = 3;
const FATAL_ERROR = 5, APPEND_DATA = 101, QUERY_ARGS = 103;
const APPEND_RESULT = 201, QUERY_RESULT = 203, FINALIZE_RESULT = 219;
// Types of cells.
const NULL = 1, VARINT = 2, FLOAT = 3, STRING = 4;

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number & 127) | 128);
  return Buffer.from([...bytes, number]);
}
const field = (id, bytes) => Buffer.concat([varint(8 * id + 2), varint(bytes.length), bytes]);
const integer = (id, value) => Buffer.concat([varint(8 * id), varint(value)]);

/** Reads a signed 64-bit varint: value and next position. */
function readVarint(bytes, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = bytes[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [BigInt.asIntN(64, value), at];
  }
}

/** Values by field id; nested messages and strings are bytes. */
function read(bytes) {
  const found = {};
  for (let at = 0; at < bytes.length;) {
    let key, value;
    [key, at] = readVarint(bytes, at);
    const kind = Number(key & 7n);
    if (kind === 0) {
      [value, at] = readVarint(bytes, at);
    } else {
      let length = kind === 1 ? 8n : 4n;
      if (kind === 2) [length, at] = readVarint(bytes, at);
      value = bytes.subarray(at, at += Number(length));
    }
    (found[Number(key >> 3n)] ??= []).push(value);
  }
  return found;
}

function packed(chunks = []) {
  const values = [];
  for (const bytes of chunks) {
    for (let at = 0; at < bytes.length;) {
      let value;
      [value, at] = readVarint(bytes, at);
      values.push(Number(value));
    }
  }
  return values;
}

/** Appends the cells of a QueryResult to `cells`; returns the number of columns, or an error. */
function readResult(bytes, cells) {
  const { 1: names, 2: error, 3: batches = [] } = read(bytes);
  if (error?.[0].length) throw new Error(Buffer.from(error[0]).toString());
  for (const batch of batches.map(read)) {
    const integers = packed(batch[2]);
    const floats = Buffer.concat(batch[3] ?? []);
    const strings = Buffer.concat(batch[5] ?? []).toString().split('\0');
    let offset = 0;
    for (const kind of packed(batch[1])) {
      if (kind === NULL) cells.push(null);
      else if (kind === VARINT) cells.push(integers.shift());
      else if (kind === FLOAT) cells.push(floats.readDoubleLE(8 * offset++));
      else if (kind === STRING) cells.push(strings.shift());
      else throw new Error(`cells of type ${kind}`);
    }
  }
  return names?.length ?? 0;
}

/** The engine, which takes this thread for a worker of a browser. */
function startEngine() {
  class Request {
    open(_, url) { this.file = path.join(folder, path.basename(url)); }
    send() { this.response = new Uint8Array(fs.readFileSync(this.file)).buffer; }
  }
  const location = { href: 'http://localhost/engine_bundle.js' };
  const host = globalThis.process;
  // Data go to standard output, the engine's messages do not.
  console.log = console.error;
  Object.assign(globalThis, { self: { location }, location, XMLHttpRequest: Request });
  globalThis.WorkerGlobalScope = Request;
  delete globalThis.process;
  vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'));
  globalThis.process = host;
  const port = { postMessage: (bytes) => port.replies.push(bytes), replies: [] };
  globalThis.self.onmessage({ data: port });
  return port;
}

let sequence = 0;
/** Calls the engine; it replies before the call returns. */
function call(port, method, ...fields) {
  const request = Buffer.concat([integer(1, sequence++), integer(2, method), ...fields]);
  port.onmessage({ data: new Uint8Array(field(1, request)) });
  const replies = port.replies.splice(0).flatMap((bytes) => read(bytes)[1]).map(read);
  const fatal = replies.find((reply) => reply[FATAL_ERROR]);
  if (fatal) throw new Error(Buffer.from(fatal[FATAL_ERROR][0]).toString());
  return replies;
}

/** Ends with the error of a reply to a part of the trace. */
function check(replies, id, errorField) {
  for (const reply of replies.filter((reply) => reply[id])) {
    const error = read(reply[id][0])[errorField]?.[0];
    if (error?.length) throw new Error(Buffer.from(error).toString());
  }
}

function main(port) {
  check(call(port, APPEND, field(APPEND_DATA, fs.readFileSync(trace))), APPEND_RESULT, 2);
  check(call(port, FINALIZE), FINALIZE_RESULT, 1);
  const tables = queries.map((query) => {
    const cells = [];
    let columns = 0;
    for (const reply of call(port, QUERY, field(QUERY_ARGS, field(1, Buffer.from(query))))) {
      columns = Math.max(columns, ...reply[QUERY_RESULT].map((it) => readResult(it, cells)));
    }
    return Array.from({ length: cells.length / columns },
      (_, row) => cells.slice(row * columns, (row + 1) * columns));
  });
  process.stdout.write(`${JSON.stringify(tables)}\n`);
}

const port = startEngine();
// The engine starts in callbacks of its own.
setTimeout(() => {
  try {
    main(port);
  } catch (error) {
    console.error(`trace processor: ${error.message}`);
    exit(1);
  }
}, 0);
