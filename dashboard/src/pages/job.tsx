// What was run, where, with which versions, and how to repeat it.
import { Code, Facts } from "../parts/bits";
import type { TabProps } from "./run";

export function JobTab({ detail }: TabProps) {
  const { run, plan } = detail;
  const repeat = run.backend === "command" ? "" : `lockstep recipe ${run.id}`;
  return (
    <div class="two-columns">
      <section class="card pad">
        <h2>Job</h2>
        {run.job_yaml ? <Code text={run.job_yaml} label="Job file" /> : <p class="muted">No job file was recorded.</p>}
        {repeat && (
          <>
            <h2 class="gap">Repeat it</h2>
            <Code text={repeat} label="Command that shows how to repeat the run" />
          </>
        )}
      </section>
      <div class="stack">
        <section class="card pad">
          <h2>Environment</h2>
          <Facts value={{ host: run.host ?? "", backend: run.backend ?? "", ranks: run.world }} />
          {run.versions !== undefined && <Facts value={run.versions} />}
        </section>
        {run.summary && Object.keys(run.summary).length > 0 && (
          <section class="card pad">
            <h2>Summary</h2>
            <Facts value={run.summary} />
          </section>
        )}
        {plan && (
          <section class="card pad">
            <h2>Plan</h2>
            <details>
              <summary>What was planned and predicted</summary>
              <Facts value={(plan.best as { [key: string]: never }) ?? plan} />
            </details>
          </section>
        )}
      </div>
    </div>
  );
}
