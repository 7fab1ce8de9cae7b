// node page_size.mjs FOLDER [MOST]: bytes of the whole page, gzipped; fails beyond MOST.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const [folder, most] = process.argv.slice(2);
if (!existsSync(folder)) {
  console.log(`skipped: ${folder} is not there, the page was not built`);
  process.exit(77);
}
const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
let total = 0;
for (const file of files)
  total += gzipSync(readFileSync(join(file.parentPath ?? file.path, file.name)), { level: 9 }).length;
console.log(`${total} bytes gzipped in ${files.length} files`);
if (most && total > Number(most)) {
  console.error(`the page has ${total} bytes gzipped, more than ${most}`);
  process.exit(1);
}
