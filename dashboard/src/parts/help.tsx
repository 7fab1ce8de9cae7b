import { useEffect, useRef } from "preact/hooks";

const kKeys: [string, string][] = [
  ["j  k", "next, previous row"],
  ["Enter", "open the row"],
  ["x", "select the row for comparison"],
  ["v", "compare what is selected"],
  ["/", "search"],
  ["1 … 9", "tabs of a run"],
  ["[  ]", "previous, next step in the timeline"],
  ["+  −  0", "zoom the timeline in, out, back"],
  ["r  s  c", "runs, studies, cluster"],
  ["t", "colours: system, light, dark"],
  ["?", "this list"],
  ["Esc", "close, leave a field"],
];

export function Help({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <table class="keys">
        <tbody>
          {kKeys.map(([key, what]) => (
            <tr key={key}>
              <th scope="row">
                {key.split(/\s+/).map((one) => (
                  <kbd key={one}>{one}</kbd>
                ))}
              </th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="muted">Drag in a chart to zoom, double-click to go back. Every view has its own address: share it.</p>
      <button type="button" onClick={() => dialog.current?.close()}>
        Close
      </button>
    </dialog>
  );
}
