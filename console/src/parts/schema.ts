/** JSON Schema as far as a form needs it. What it does not cover is edited as JSON. */

export type Schema = Record<string, unknown>;

export type Field =
  | { kind: "text"; isLong: boolean }
  | { kind: "number"; isInteger: boolean }
  | { kind: "boolean" }
  | { kind: "choice"; choices: unknown[] }
  | { kind: "object"; properties: [string, Schema][]; required: Set<string> }
  | { kind: "list"; items: Schema }
  | { kind: "json" };

export interface FieldPlan {
  field: Field;
  isNullable: boolean;
  description: string;
}

const DEEPEST = 6;

/** Follow `$ref` inside the document; an unknown or circular one stands for anything. */
export function resolve(schema: Schema, root: Schema): Schema {
  let current = schema;
  for (let depth = 0; depth < 10; depth += 1) {
    const reference = current.$ref;
    if (typeof reference !== "string" || !reference.startsWith("#/")) return current;
    let found: unknown = root;
    for (const part of reference.slice(2).split("/")) {
      const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
      found = isSchema(found) && Object.hasOwn(found, name) ? found[name] : undefined;
    }
    if (!isSchema(found)) return {};
    current = { ...found, ...without(current, "$ref") };
  }
  return {};
}

export function planField(schema: Schema, root: Schema, value: unknown, depth = 0): FieldPlan {
  const whole = resolve(schema, root);
  const { inner, isNullable } = splitNull(whole, root);
  const description = String(whole.description ?? inner.description ?? "");
  return { field: chooseField(inner, value, depth), isNullable, description };
}

function splitNull(schema: Schema, root: Schema): { inner: Schema; isNullable: boolean } {
  const choices = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(choices)) {
    const others = choices.filter(isSchema).filter((one) => one.type !== "null");
    const isNullable = others.length < choices.length;
    if (others.length === 1 && others[0]) return { inner: resolve(others[0], root), isNullable };
    return { inner: {}, isNullable };
  }
  const type = schema.type;
  if (Array.isArray(type) && type.includes("null")) {
    const others = type.filter((one) => one !== "null");
    return { inner: { ...schema, type: others.length === 1 ? others[0] : others }, isNullable: true };
  }
  return { inner: schema, isNullable: false };
}

function chooseField(schema: Schema, value: unknown, depth: number): Field {
  const choices = schema.enum;
  if (Array.isArray(choices) && choices.length > 0 && choices.length <= 200) return { kind: "choice", choices };
  if (depth < DEEPEST) {
    if (schema.type === "object" && isSchema(schema.properties)) {
      const properties = Object.entries(schema.properties).filter((one): one is [string, Schema] => isSchema(one[1]));
      const required = new Set(Array.isArray(schema.required) ? schema.required.map(String) : []);
      return { kind: "object", properties, required };
    }
    if (schema.type === "array" && isSchema(schema.items)) return { kind: "list", items: schema.items };
  }
  switch (schema.type) {
    case "string":
      return { kind: "text", isLong: typeof value === "string" && (value.length > 60 || value.includes("\n")) };
    case "number":
    case "integer":
      return { kind: "number", isInteger: schema.type === "integer" };
    case "boolean":
      return { kind: "boolean" };
    default:
      return { kind: "json" };
  }
}

/** Return a schema that fits a value, for tools whose schema the server does not know. */
export function inferSchema(value: unknown): Schema {
  if (Array.isArray(value)) return { type: "array", items: value.length > 0 ? inferSchema(value[0]) : {} };
  if (value !== null && typeof value === "object") {
    const properties = Object.fromEntries(Object.entries(value).map(([name, one]) => [name, inferSchema(one)]));
    return { type: "object", properties };
  }
  return value === null ? {} : { type: typeof value };
}

/** Return the value that a new field begins with. */
export function makeDefault(schema: Schema, root: Schema): unknown {
  const whole = resolve(schema, root);
  if ("default" in whole) return structuredClone(whole.default);
  const { field, isNullable } = planField(whole, root, undefined);
  if (isNullable) return null;
  const empty = { text: "", number: 0, boolean: false, object: {}, list: [], json: null };
  return field.kind === "choice" ? field.choices[0] : empty[field.kind];
}

export function isSchema(value: unknown): value is Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function without(schema: Schema, name: string): Schema {
  return Object.fromEntries(Object.entries(schema).filter(([one]) => one !== name));
}
