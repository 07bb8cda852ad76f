/** A form made from a JSON Schema. It changes a value, and says where the value cannot be read. */

import { useId, useState } from "preact/hooks";
import { escapeUnseen, formatJson, parseArguments, showUnseen } from "../text";
import { type Field, isSchema, makeDefault, planField, type Schema } from "./schema";

export interface FormProps {
  schema: Schema;
  value: unknown;
  onChange(value: unknown): void;
  /** Told with `true` while some field holds text that is no value. */
  onInvalid(path: string, isInvalid: boolean): void;
}

export function SchemaForm({ schema, value, onChange, onInvalid }: FormProps) {
  const root = schema;
  return <FieldView {...{ schema, root, value, onChange, onInvalid }} name="arguments" path="" depth={0} />;
}

interface FieldProps extends FormProps {
  root: Schema;
  name: string;
  path: string;
  depth: number;
}

function FieldView(props: FieldProps) {
  const { schema, root, value, onChange, name, path, depth } = props;
  const id = useId();
  const { field, isNullable, description } = planField(schema, root, value, depth);
  if (field.kind === "object" && isSchema(value)) return <ObjectView {...props} field={field} value={value} />;
  const isNull = value === null && isNullable;
  return (
    <div class="field">
      <label for={id}>{showUnseen(name)}</label>
      {isNullable && (
        <label class="field-null">
          <input
            type="checkbox"
            checked={isNull}
            onChange={(event) => onChange(event.currentTarget.checked ? null : makeFilled(schema, root))}
          />
          null
        </label>
      )}
      {isNull ? (
        <output id={id}>null</output>
      ) : (
        <Control {...props} field={field} id={id} key={`${path}:${field.kind}`} />
      )}
      {description && <small>{showUnseen(description)}</small>}
    </div>
  );
}

function makeFilled(schema: Schema, root: Schema): unknown {
  const { field } = planField(schema, root, undefined);
  const empty = { text: "", number: 0, boolean: false, object: {}, list: [], json: {} };
  return field.kind === "choice" ? field.choices[0] : empty[field.kind];
}

function ObjectView(props: FieldProps & { field: Extract<Field, { kind: "object" }>; value: Schema }) {
  const { field, value, root, onChange, onInvalid, path, name, depth } = props;
  const known = new Set(field.properties.map(([one]) => one));
  const others = Object.keys(value).filter((one) => !known.has(one));
  const rows: [string, Schema][] = [...field.properties, ...others.map((one): [string, Schema] => [one, {}])];
  return (
    <fieldset class={depth === 0 ? "form top" : "form"}>
      <legend class={depth === 0 ? "visually-hidden" : ""}>{showUnseen(name)}</legend>
      {rows.map(([one, inner]) =>
        Object.hasOwn(value, one) ? (
          <FieldView
            key={one}
            {...{ root, onInvalid }}
            schema={inner}
            name={one}
            path={`${path}/${one}`}
            depth={depth + 1}
            value={value[one]}
            onChange={(changed) => onChange({ ...value, [one]: changed })}
          />
        ) : (
          <button
            key={one}
            type="button"
            class="link"
            onClick={() => onChange({ ...value, [one]: makeDefault(inner, root) })}
          >
            add {showUnseen(one)}
          </button>
        ),
      )}
    </fieldset>
  );
}

type ControlProps = FieldProps & { field: Field; id: string };

function Control(props: ControlProps) {
  const { field, value, onChange, id } = props;
  switch (field.kind) {
    case "text":
      if (typeof value !== "string" || showUnseen(value) !== value) return <JsonControl {...props} />;
      return field.isLong ? (
        <textarea id={id} rows={6} value={value} onInput={(event) => onChange(event.currentTarget.value)} />
      ) : (
        <input id={id} type="text" value={value} onInput={(event) => onChange(event.currentTarget.value)} />
      );
    case "number":
      return typeof value === "number" ? (
        <NumberControl {...props} isInteger={field.isInteger} />
      ) : (
        <JsonControl {...props} />
      );
    case "boolean":
      return (
        <input
          id={id}
          type="checkbox"
          checked={value === true}
          onChange={(event) => onChange(event.currentTarget.checked)}
        />
      );
    case "choice": {
      const texts = field.choices.map((one) => JSON.stringify(one));
      const current = JSON.stringify(value);
      return (
        <select id={id} value={current} onChange={(event) => onChange(JSON.parse(event.currentTarget.value))}>
          {!texts.includes(current) && <option value={current}>{showUnseen(current ?? "")}</option>}
          {field.choices.map((one, index) => (
            <option key={texts[index]} value={texts[index]}>
              {showUnseen(formatJson(one))}
            </option>
          ))}
        </select>
      );
    }
    case "list":
      return Array.isArray(value) ? (
        <ListControl {...props} items={field.items} value={value} />
      ) : (
        <JsonControl {...props} />
      );
    default:
      return <JsonControl {...props} />;
  }
}

function NumberControl({ id, value, onChange, onInvalid, path, isInteger }: ControlProps & { isInteger: boolean }) {
  const [text, setText] = useState(String(value));
  const isInvalid = readNumber(text, isInteger) === null;
  const change = (changed: string) => {
    setText(changed);
    const number = readNumber(changed, isInteger);
    onInvalid(path, number === null);
    if (number !== null) onChange(number);
  };
  return (
    <input
      id={id}
      type="text"
      inputMode={isInteger ? "numeric" : "decimal"}
      value={text}
      aria-invalid={isInvalid}
      onInput={(event) => change(event.currentTarget.value)}
    />
  );
}

export function readNumber(text: string, isInteger: boolean): number | null {
  const number = Number(text.trim());
  if (text.trim() === "" || !Number.isFinite(number)) return null;
  if (Number.isInteger(number) && !Number.isSafeInteger(number)) return null; // it would be rounded
  return isInteger && !Number.isInteger(number) ? null : number;
}

function JsonControl({ id, value, onChange, onInvalid, path }: ControlProps) {
  const [text, setText] = useState(escapeUnseen(JSON.stringify(value, null, 2) ?? "null"));
  const [problem, setProblem] = useState<string | null>(null);
  const change = (changed: string) => {
    setText(changed);
    const parsed = parseArguments(changed);
    const found = "problem" in parsed ? parsed.problem : null;
    setProblem(found);
    onInvalid(path, found !== null);
    if ("value" in parsed) onChange(parsed.value);
  };
  return (
    <>
      <textarea
        id={id}
        class="mono"
        rows={Math.min(12, text.split("\n").length + 1)}
        value={text}
        aria-invalid={problem !== null}
        onInput={(event) => change(event.currentTarget.value)}
      />
      {problem && <small class="invalid">{problem}</small>}
    </>
  );
}

function ListControl({
  items,
  value,
  root,
  onChange,
  onInvalid,
  path,
  depth,
  id,
}: ControlProps & { items: Schema; value: unknown[] }) {
  return (
    <div class="form list" id={id}>
      {value.map((one, index) => (
        <div class="list-entry" key={`${index}/${value.length}`}>
          <FieldView
            {...{ root, onInvalid }}
            schema={items}
            name={String(index)}
            path={`${path}/${index}`}
            depth={depth + 1}
            value={one}
            onChange={(changed) => onChange(value.with(index, changed))}
          />
          <button
            type="button"
            class="link"
            onClick={() => onChange(value.toSpliced(index, 1))}
            aria-label={`remove ${index}`}
          >
            remove
          </button>
        </div>
      ))}
      <button type="button" class="link" onClick={() => onChange([...value, makeDefault(items, root)])}>
        add
      </button>
    </div>
  );
}
