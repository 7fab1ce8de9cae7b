import { useRef, useState } from "preact/hooks";

const kMostTags = 20;
const kLongestTag = 60;

// Tags of a run, shown as they are: text, whatever they hold.
export function TagEditor({ tags, save }: { tags: string[]; save: (tags: string[]) => Promise<void> }) {
  const [adding, setAdding] = useState(false);
  const [problem, setProblem] = useState("");
  const field = useRef<HTMLInputElement>(null);
  const keep = async (next: string[]) => {
    try {
      setProblem("");
      await save(next);
      return true;
    } catch (error) {
      setProblem((error as Error).message);
      return false;
    }
  };
  const add = async (event: Event) => {
    event.preventDefault();
    const word = field.current?.value.trim() ?? "";
    if (!word || tags.includes(word)) return setAdding(false);
    if (await keep([...tags, word])) setAdding(false);
  };
  return (
    <div class="tag-editor">
      {tags.map((tag) => (
        <span class="tag removable" key={tag}>
          {tag}
          <button
            type="button"
            onClick={() => keep(tags.filter((one) => one !== tag))}
            aria-label={`Remove tag ${tag}`}
          >
            ×
          </button>
        </span>
      ))}
      {adding ? (
        <form onSubmit={add}>
          <input
            ref={(element) => {
              if (element && field.current !== element) element.focus();
              field.current = element;
            }}
            class="tag-input"
            maxLength={kLongestTag}
            aria-label="New tag"
            onKeyDown={(event) => event.key === "Escape" && setAdding(false)}
          />
          <button type="submit" class="small">
            Add
          </button>
        </form>
      ) : (
        tags.length < kMostTags && (
          <button type="button" class="tag add" onClick={() => setAdding(true)}>
            + tag
          </button>
        )
      )}
      {problem && (
        <span class="problem" role="alert">
          {problem}
        </span>
      )}
    </div>
  );
}
