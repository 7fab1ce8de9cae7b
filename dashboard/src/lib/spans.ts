// Spans of one step, laid out: rows per rank and lane, depth inside a lane, links between send and receive.
import type { SpanRow, Timeline, TimelineRank } from "./api";

export interface Box {
  rank: number;
  lane: string;
  kind: string;
  name: string;
  group: string;
  begin: number; // microseconds after the first span of all ranks
  end: number;
  bytes: number;
  sequence: number;
  peer: number;
  micro: number;
  stage: number;
  depth: number;
  row: number; // into Layout.rows
}

export interface LaneRow {
  rank: number;
  lane: string;
  depth: number; // how many spans lie inside each other
}

export interface Link {
  from: Box;
  to: Box;
}

export interface Layout {
  boxes: Box[]; // by row, then begin
  rows: LaneRow[];
  links: Link[];
  length: number; // microseconds
  aligned: boolean; // clocks were set right by collectives
  members: Map<string, Box[]>; // of one collective, by group and sequence
}

const kLanes = ["main", "comm", "loader", "saver", "device"];
// Clocks of one host agree far better than this; beyond it collectives are believed rather than clocks.
const kClockSkewUs = 2000;
const kClockUs = 2; // spans that overlap by less follow each other: clocks and rounding

function boxOf(row: SpanRow, rank: TimelineRank, offset: number): Box {
  const [kind, lane, begin, length, ...rest] = row;
  const [name = -1, group = -1, bytes = 0, sequence = -1, peer = -1, micro = -1, stage = -1] = rest;
  const text = (at: number) => rank.names[at] ?? "";
  return {
    rank: rank.rank,
    lane,
    kind,
    name: text(name),
    group: text(group),
    begin: offset + begin,
    end: offset + begin + length,
    bytes,
    sequence,
    peer,
    micro,
    stage,
    depth: 0,
    row: 0,
  };
}

export const keyOf = (box: Box): string => (box.sequence < 0 ? "" : `${box.group}#${box.sequence}`);

// By how much each rank's clock is ahead of the first rank's, from the ends of collectives they share.
function skews(ranks: Box[][]): number[] {
  const ends = ranks.map((boxes) => {
    const found = new Map<string, number>();
    for (const box of boxes)
      if (box.kind === "collective" && box.peer < 0 && keyOf(box)) found.set(keyOf(box), box.end);
    return found;
  });
  return ends.map((mine, at) => {
    if (at === 0) return 0;
    const differences: number[] = [];
    for (const [key, end] of mine) {
      const first = ends[0].get(key);
      if (first !== undefined) differences.push(end - first);
    }
    if (differences.length === 0) return 0;
    differences.sort((a, b) => a - b);
    return differences[differences.length >> 1];
  });
}

function setDepths(boxes: Box[]): number {
  boxes.sort((a, b) => a.begin - b.begin || b.end - a.end);
  const open: Box[] = [];
  let deepest = 1;
  for (const box of boxes) {
    while (open.length > 0 && open[open.length - 1].end <= box.begin + kClockUs) open.pop();
    box.depth = open.length;
    open.push(box);
    deepest = Math.max(deepest, open.length);
  }
  return deepest;
}

// Messages: two spans of one group and sequence, each naming the other as peer.
function linksOf(members: Map<string, Box[]>): Link[] {
  const links: Link[] = [];
  for (const boxes of members.values()) {
    for (const from of boxes) {
      if (from.peer < 0 || !/send/.test(from.name)) continue;
      const to = boxes.find(
        (box) => box !== from && box.rank === from.peer && (box.peer < 0 || box.peer === from.rank),
      );
      if (to) links.push({ from, to });
    }
  }
  return links;
}

export function layOut(timeline: Timeline): Layout {
  const ranks = [...timeline.ranks].sort((a, b) => a.rank - b.rank);
  const start = Math.min(...ranks.map((rank) => rank.time));
  const perRank = ranks.map((rank) => rank.spans.map((row) => boxOf(row, rank, (rank.time - start) * 1e6)));
  const ahead = skews(perRank);
  const aligned = ahead.some((skew) => Math.abs(skew) > kClockSkewUs);
  if (aligned) {
    perRank.forEach((boxes, at) => {
      for (const box of boxes) {
        box.begin -= ahead[at];
        box.end -= ahead[at];
      }
    });
  }
  const all = perRank.flat();
  const first = all.reduce((least, box) => Math.min(least, box.begin), Number.POSITIVE_INFINITY);
  const rows: LaneRow[] = [];
  const boxes: Box[] = [];
  const members = new Map<string, Box[]>();
  ranks.forEach((rank, at) => {
    for (const lane of kLanes) {
      const mine = perRank[at].filter((box) => box.lane === lane && box.kind !== "step");
      if (mine.length === 0) continue;
      for (const box of mine) {
        box.begin -= first;
        box.end -= first;
        box.row = rows.length;
        const key = keyOf(box);
        if (key) members.set(key, [...(members.get(key) ?? []), box]);
      }
      rows.push({ rank: rank.rank, lane, depth: setDepths(mine) });
      boxes.push(...mine);
    }
  });
  const length = boxes.reduce((most, box) => Math.max(most, box.end), 1);
  return { boxes, rows, links: linksOf(members), length, aligned, members };
}
