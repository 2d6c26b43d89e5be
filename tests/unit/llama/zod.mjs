// The types of schema_types.py: npm install zod@4.6.7 && node zod.mjs > zod.json
import { readFileSync } from "node:fs";
import * as z from "zod";

const address = z.object({
  street: z.string().min(1).max(20).describe("with the number"),
  city: z.string(),
  country: z.string().regex(/^[A-Z]{2}$/),
});
const money = z.object({ amount: z.number().min(0).multipleOf(0.25), currency: z.enum(["EUR", "USD"]) });
const line = z.object({ sku: z.string().regex(/^[A-Z]{3}-[0-9]{4}$/), quantity: z.int().positive().max(99), price: money });
const shape = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("circle"), radius: z.number().positive() }),
  z.object({ kind: z.literal("square"), side: z.int().min(1) }),
]);
const node = z.object({ value: z.int(), get children() { return z.array(node).default([]); } });
const chain = z.object({ value: z.string(), get rest() { return chain.nullish(); } });
const file = z.object({ name: z.string(), size: z.int().min(0) });
const folder = z.object({ name: z.string(), get entries() { return z.array(z.union([file, folder])); } });
const comparison = z.object({ op: z.enum(["eq", "lt"]), field: z.string(), value: z.union([z.int(), z.string(), z.boolean()]) });
const both = z.object({ op: z.enum(["and", "or"]), get filters() { return z.array(filter).min(1).max(2); } });
const filter = z.discriminatedUnion("op", [comparison, both]);
const priority = z.enum({ LOW: 1, HIGH: 10 });

const types = {
  text: z.string(),
  whole: z.int(),
  number: z.number(),
  yes: z.boolean(),
  nothing: z.null(),
  anything: z.json(),
  date: z.iso.date(),
  time: z.iso.time(),
  moment: z.iso.datetime({ offset: true }),
  uuid: z.uuid(),
  uuid4: z.uuidv4(),
  address: z.ipv4(),
  email: z.email(),
  url: z.url(),
  base64: z.base64(),
  nanoid: z.nanoid(),
  fruit: z.enum(["apple", "pear"]),
  priority,
  literal: z.literal(["a", 1, true, null]),
  optional: z.int().nullable(),
  either: z.union([z.int(), z.string()]),
  percent: z.int().min(0).max(100),
  share: z.number().min(0).max(1),
  fives: z.int().multipleOf(5),
  name: z.string().min(1).max(8),
  phone: z.e164(),
  record: z.record(z.string(), z.int()),
  records: z.record(z.string(), z.record(z.string(), z.boolean())),
  list: z.array(z.int()).min(1).max(3),
  matrix: z.array(z.array(z.number())),
  pair: z.tuple([z.string(), z.int()]),
  several: z.tuple([z.string()], z.int()),
  person: z.object({
    name: z.string(),
    age: z.int().min(0).max(150).nullish(),
    address: address.optional(),
    tags: z.array(z.string()).default([]),
  }),
  point: z.strictObject({ latitude: z.number().min(-90).max(90), longitude: z.number().min(-180).max(180) }),
  order: z.object({ id: z.uuid(), placed: z.iso.date(), lines: z.array(line).min(1).max(2), note: z.string().nullish() }),
  drawing: z.object({ shapes: z.array(shape).max(2) }),
  tree: node,
  chain,
  folder,
  filter,
  event: z.object({
    title: z.string(),
    start: z.iso.datetime({ offset: true }),
    priority: priority.default(1),
    attendees: z.record(z.string(), z.boolean()),
  }),
  page: z.object({
    query: z.string(),
    limit: z.int().min(1).max(100).default(10),
    offset: z.int().min(0).default(0),
    sort: z.enum(["asc", "desc"]).default("asc"),
  }),
  open: z.object({ name: z.string() }).catchall(z.int()),
  edit: z.object({ path: z.string(), old: z.string(), new: z.string(), everywhere: z.boolean().default(false) }),
  patch: z.array(
    z.union([
      z.object({ op: z.literal("add"), path: z.string().startsWith("/"), value: z.json() }),
      z.object({ op: z.literal("remove"), path: z.string().startsWith("/") }),
    ]),
  ),
  alias: z.object({ from: z.string(), "to address": z.string() }),
};
const { version } = JSON.parse(readFileSync(new URL("./node_modules/zod/package.json", import.meta.url)));
const schemas = Object.entries(types).map(([name, type]) => `"${name}":${JSON.stringify(z.toJSONSchema(type))}`);
console.log(`{"zod":"${version}","schemas":{\n${schemas.join(",\n")}\n}}`);
