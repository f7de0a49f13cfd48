// Keeps a page up to date without a reload: fetches it again and exchanges what is marked as live, if it has changed.
// What was unfolded stays so, and so do the focus and the place on the page. Nothing is fetched while the page is hidden.
"use strict";

const EVERY = 2000; // milliseconds after an answer
const loaded = new Map(); // the text or elements that a link has brought into this page, by its address and text
let seen, version;

function keepFresh() {
  setTimeout(() => refresh().finally(keepFresh), EVERY);
}

async function refresh() {
  const live = document.querySelector("[data-live]");
  if (document.hidden || !live || live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return;
  let response;
  try {
    const headers = version ? { "if-none-match": version } : {};
    response = await fetch(location.href, { cache: "no-store", redirect: "error", headers });
  } catch {
    return say("The proxy does not answer.");
  }
  if (response.status === 304) return say("");
  if (response.status === 401) return location.reload();
  if (!response.ok) return say(`The proxy answered ${response.status}.`);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = page.querySelector("[data-live]");
  version = response.headers.get("etag");
  if (!fresh || fresh.innerHTML === seen) return say("");
  seen = fresh.innerHTML;
  const open = [...live.querySelectorAll("details[id]")].filter((each) => each.open).map((each) => each.id);
  const focus = pathTo(live, document.activeElement);
  for (const link of fresh.querySelectorAll("a[data-unfold], details[data-load] a")) if (loaded.has(keyOf(link))) put(link, loaded.get(keyOf(link)));
  open.forEach((id) => fresh.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", ""));
  live.replaceChildren(...fresh.childNodes);
  if (focus) elementAt(live, focus)?.focus({ preventScroll: true });
  say("");
}

function pathTo(root, element) {
  if (!root.contains(element) || element === root) return null;
  const path = [];
  for (let at = element; at !== root; at = at.parentElement) path.unshift([...at.parentElement.children].indexOf(at));
  return path;
}

function elementAt(root, path) {
  return path.reduce((at, place) => at?.children[place], root);
}

function say(text) {
  const status = document.getElementById("status");
  if (status.textContent !== text) status.textContent = text;
}

// Brings what a link leads to into its place: the rest of a message, or what a condensation did. Without a script, the
// link leads to a page with all of it.
function keyOf(link) {
  return `${link.getAttribute("href")} ${link.textContent}`;
}

async function load(link) {
  const response = await fetch(link.href, { cache: "no-store", redirect: "error" }).catch(() => null);
  const page = response?.ok && new DOMParser().parseFromString(await response.text(), "text/html");
  const text = page && page.getElementById("text");
  if (!text) return false;
  text.removeAttribute("id");
  loaded.set(keyOf(link), text);
  put(link, text);
  return true;
}

function put(link, text) {
  if (link.matches("[data-unfold]")) {
    link.previousElementSibling.textContent = text.textContent;
    link.remove();
  } else {
    link.closest("p").replaceWith(text);
  }
}

document.addEventListener("click", async (event) => {
  const link = event.target.closest?.("a[data-unfold]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (!await load(link)) location.href = link.href;
});

document.addEventListener("toggle", (event) => {
  const link = event.target.matches("details[data-load][open]") && event.target.querySelector("summary + p > a");
  if (link) load(link);
}, true);

// A link to a row of a folded table opens it.
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  for (let at = target; at; at = at.parentElement) if (at.matches("details")) at.open = true;
  target?.scrollIntoView({ block: target.matches("tr") ? "center" : "start" });
}
addEventListener("hashchange", openTarget);
openTarget();

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
seen = document.querySelector("[data-live]")?.innerHTML;
if (seen !== undefined) keepFresh();
