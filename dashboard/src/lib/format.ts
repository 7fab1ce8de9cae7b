// Figures as people read them. Everything takes "not known" and shows it as a dash.
import type { Maybe } from "./api";

export const kDash = "–";

function known(value: Maybe): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

// Three to four significant digits, thousands separated.
export function number(value: Maybe, digits = 4): string {
  if (!known(value)) return kDash;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(2);
  const rounded = size >= 1000 ? Math.round(value) : Number(value.toPrecision(digits));
  return rounded.toLocaleString("en-US", { maximumFractionDigits: 9 });
}

function scaled(value: number, base: number, units: string[]): string {
  let at = 0;
  let rest = value;
  while (Math.abs(rest) >= base && at + 1 < units.length) {
    rest /= base;
    at++;
  }
  const digits = at === 0 || Math.abs(rest) >= 100 ? 0 : Math.abs(rest) >= 10 ? 1 : 2;
  return `${rest.toFixed(Number.isInteger(rest) ? 0 : digits)}${units[at]}`;
}

export const bytes = (value: Maybe): string =>
  known(value) ? scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]) : kDash;

export function compact(value: Maybe): string {
  if (!known(value)) return kDash;
  return Math.abs(value) < 1000 ? number(value, 3) : scaled(value, 1000, ["", "k", "M", "G", "T"]);
}

export function percent(share: Maybe, digits = 1): string {
  return known(share) ? `${(share * 100).toFixed(Math.abs(share) >= 9.995 ? 0 : digits)}%` : kDash;
}

export function signedPercent(share: Maybe): string {
  if (!known(share)) return kDash;
  const size = Math.abs(share * 100).toFixed(1);
  return size === "0.0" ? "0%" : `${share > 0 ? "+" : "−"}${size}%`;
}

export function usd(value: Maybe): string {
  if (!known(value)) return kDash;
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (size === 0) return "$0";
  if (size < 0.01) return `${sign}$${size.toPrecision(2)}`;
  return `${sign}$${size >= 1000 ? Math.round(size).toLocaleString("en-US") : size.toFixed(2)}`;
}

// 0.0123 -> "12.3 ms"; 4000 -> "1 h 6 min"
export function seconds(value: Maybe): string {
  if (!known(value)) return kDash;
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${sign}${(size * 1e6).toPrecision(3)} µs`;
  if (size < 0.9995) return `${sign}${Number((size * 1e3).toPrecision(3))} ms`;
  if (size < 60) return `${sign}${Number(size.toPrecision(3))} s`;
  const whole = Math.round(size);
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${whole % 60} s`;
  const hours = Math.floor(whole / 3600);
  if (hours < 48) return `${sign}${hours} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${sign}${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function ago(time: Maybe, now = Date.now() / 1000): string {
  if (!known(time) || time <= 0) return kDash;
  const past = now - time;
  if (past < 5) return "now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 172_800) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86_400)} d ago`;
}

export function clock(time: Maybe): string {
  if (!known(time) || time <= 0) return kDash;
  const date = new Date(time * 1000);
  return date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

export function clockShort(time: Maybe): string {
  return known(time) && time > 0 ? new Date(time * 1000).toLocaleTimeString("en-GB") : kDash;
}

// "tokens_per_second" -> "Tokens per second"
export function words(name: string): string {
  const text = name.replace(/_/g, " ").trim();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// How a metric's values read, by its name: units are in the names.
export function metricFormat(name: string): (value: Maybe) => string {
  if (name.endsWith("_seconds")) return seconds;
  if (name.endsWith("_bytes")) return bytes;
  if (name.endsWith("_percent")) return (value) => (known(value) ? `${number(value, 3)}%` : kDash);
  if (/^(mfu|efficiency|goodput)$/.test(name) || name.endsWith("_accuracy")) return percent;
  if (name.endsWith("_per_second")) return compact;
  return number;
}

const kTitles: Record<string, string> = {
  mfu: "MFU",
  memory_bytes: "Memory, peak",
  allocated_bytes: "Memory after the step",
  step_seconds: "Step time",
  comm_seconds: "Exposed communication",
  wait_seconds: "Waiting for peers",
  data_seconds: "Waiting for data",
};

export function metricTitle(name: string): string {
  return kTitles[name] ?? words(name.replace(/_(seconds|bytes)$/, ""));
}
