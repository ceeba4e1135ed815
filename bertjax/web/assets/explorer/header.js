// The top of the page: the model, copies of address and Python, theme.

import { toggleTheme } from "../shared/colours.js";

// Start the buttons. python(): a promise of the lines, or null if there is no map; onError(error).
export function startHeader({ data, python, onError }) {
  const find = id => document.getElementById(id);
  const pane = find("python");

  async function copyPython() {
    try {
      const code = await python();
      if (code === null) return;
      pane.querySelector("pre").textContent = code;
      pane.hidden = false;
      find("python-note").textContent = (await copyText(code)) ? "These lines are copied:" : "Copy these lines:";
    } catch (error) {
      onError(error);
    }
  }

  async function copyLink() {
    const done = await copyText(location.href), button = find("copy-link");
    find("copied").textContent = button.textContent = done ? "Link copied" : "Copy it from the address bar";
    setTimeout(() => { button.textContent = "Copy link"; }, 2000);
  }

  find("model").textContent = modelText(data);
  find("model").title = data.model.name;
  find("theme").addEventListener("click", toggleTheme);
  find("copy-link").addEventListener("click", copyLink);
  find("copy-python").addEventListener("click", copyPython);
  find("python-close").addEventListener("click", () => { pane.hidden = true; });
}

function modelText({ model, task, version }) {
  const size = `${model.layers} layers of ${model.heads} heads`, name = model.name.split("/").slice(-2).join("/");
  return [`${name}: ${size}`, task && `task ${task}`, `bertjax ${version}`].filter(Boolean).join(" · ");
}

// Copy a text; whether that was possible.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
