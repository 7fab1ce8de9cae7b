import { render } from "preact";
import { App } from "./app";
import { startKeys } from "./lib/keys";
import { startTheme } from "./lib/theme";
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";

startTheme();
startKeys();
render(<App />, document.getElementById("app")!);
