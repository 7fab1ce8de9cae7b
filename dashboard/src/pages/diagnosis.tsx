// What is wrong with the run, and the command that fixes it.
import { type Finding, runPath, useAsk } from "../lib/api";
import { percent, usd, words } from "../lib/format";
import { hrefOf } from "../lib/route";
import { CopyButton, Empty, Waiting } from "../parts/bits";
import type { TabProps } from "./run";

interface DiagnosisData {
  read: { file: string; kind: string; ranks: number }[];
  findings: Finding[];
}

export function Diagnosis({ detail, refresh }: TabProps) {
  const answer = useAsk<DiagnosisData>(runPath(detail.run.id, "/diagnosis"), undefined, refresh);
  if (!answer.data) return <Waiting {...answer} what="Diagnosis" />;
  const { findings } = answer.data;
  if (findings.length === 0) {
    return (
      <Empty title="✓ Nothing is wrong">
        <p>No cause that costs more than is worth saying was found in what this run recorded.</p>
      </Empty>
    );
  }
  return (
    <ol class="findings">
      {findings.map((finding, at) => (
        <FindingCard key={at} finding={finding} run={detail.run.id} first={at === 0} />
      ))}
    </ol>
  );
}

// "lockstep train ...: why" -> the part to copy: a command or a setting comes first, then why.
export function commandOf(fix: string): string {
  return fix.match(/^`([^`]+)`/)?.[1] ?? fix.split(/(?:;|: | – )/)[0].trim();
}

function FindingCard({ finding, run, first }: { finding: Finding; run: string; first: boolean }) {
  const command = commandOf(finding.fix);
  return (
    <li class={`finding card ${first ? "finding-first" : ""}`}>
      <div class="finding-head">
        <h2>{words(finding.cause)}</h2>
        {finding.ranks.length > 0 && (
          <a href={hrefOf(["runs", run, "ranks"])}>
            {finding.ranks.length === 1 ? "rank" : "ranks"} {finding.ranks.slice(0, 12).join(", ")}
            {finding.ranks.length > 12 && " …"}
          </a>
        )}
      </div>
      <dl class="finding-figures">
        <div>
          <dt>Costs</dt>
          <dd class="bad">
            {finding.cost_percent.toFixed(1)}% of the time
            {finding.cost_usd_per_hour ? `, ${usd(finding.cost_usd_per_hour)} an hour` : ""}
          </dd>
        </div>
        <div>
          <dt>Sure</dt>
          <dd>{percent(finding.confidence, 0)}</dd>
        </div>
        {finding.gain_percent ? (
          <div>
            <dt>Gain, predicted</dt>
            <dd class="good">+{finding.gain_percent.toFixed(1)}% per second</dd>
          </div>
        ) : null}
      </dl>
      <p class="finding-evidence">{finding.evidence}</p>
      <div class="finding-fix">
        <h3>Fix</h3>
        <p>{finding.fix}</p>
        <CopyButton text={command} label="Copy fix" />
      </div>
    </li>
  );
}
