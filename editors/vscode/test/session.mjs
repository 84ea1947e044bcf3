// A session in VS Code: open a file, go to a finding, click the light bulb and the first fix in its
// menu, save.
//
//     node session.mjs FOLDER FILE LINE SERVER [PICTURE]
//
// SERVER is the program that is started with "lsp".  With PICTURE, the menu is kept in that file.

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

const [folder, file, line, server, picture] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const main = join(here, "node_modules/code-server/lib/vscode/out/server-main.js");
const vsix = join(here, "../dist/trainify.vsix");
const data = mkdtempSync(join(tmpdir(), "vscode-"));
const places = ["--user-data-dir", join(data, "user"), "--extensions-dir", join(data, "extensions")];
const common = [main, "--accept-server-license-terms", ...places];
const settings = {
  "trainify.command": [server, "lsp"],
  "security.workspace.trust.enabled": false,
  "workbench.startupEditor": "none",
  "workbench.colorTheme": "Default Light Modern",
  "editor.minimap.enabled": false,
  "git.enabled": false,
  "telemetry.telemetryLevel": "off",
};

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function freePort() {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

async function installed() {
  for (const kind of ["User", "Machine"]) {
    mkdirSync(join(data, "user", kind), { recursive: true });
    writeFileSync(join(data, "user", kind, "settings.json"), JSON.stringify(settings));
  }
  const code = await new Promise((resolve) =>
    spawn(process.execPath, [...common, "--install-extension", vsix], { stdio: "ignore" })
      .on("exit", resolve),
  );
  if (code !== 0) throw new Error(`the extension was not installed: ${code}`);
}

async function started(port) {
  const arguments_ = ["--host", "127.0.0.1", "--port", String(port), "--without-connection-token"];
  const vscode = spawn(process.execPath, [...common, ...arguments_], { stdio: "ignore" });
  for (let tries = 0; tries < 300; tries++) {
    try {
      if ((await fetch(`http://127.0.0.1:${port}/`)).ok) return vscode;
    } catch {
      await sleep(200);
    }
  }
  vscode.kill();
  throw new Error("VS Code does not start");
}

async function session(page) {
  const found = (selector) => page.waitForSelector(selector, { visible: true });
  const chord = async (key) => {
    await page.keyboard.down("Control");
    await page.keyboard.press(key);
    await page.keyboard.up("Control");
  };
  await page.locator(`.monaco-list-row[aria-label*="${file}"]`).click({ count: 2 });
  await found(".view-line");
  await chord("g");
  await found(".quick-input-widget input");
  await page.keyboard.type(`${line}:12`);
  await sleep(300);
  await page.keyboard.press("Enter");
  await found(".squiggly-warning, .squiggly-error");
  await page.locator("[class*=codicon-gutter-lightbulb], .lightBulbWidget").click();
  const actions = ".action-widget .monaco-list-row.action";
  await found(actions);
  await sleep(500);
  const titles = await page.$$eval(actions, (rows) => rows.map((row) => row.textContent.trim()));
  if (picture) await page.screenshot({ path: picture });
  await page.locator(actions).click();
  await page.waitForFunction(() => !document.querySelector(".squiggly-warning, .squiggly-error"));
  await chord("s");
  await page.waitForFunction(() => !document.querySelector(".tab.dirty"));
  await sleep(500);
  return titles;
}

let vscode, browser;
try {
  await installed();
  const port = await freePort();
  vscode = await started(port);
  browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox"],
    defaultViewport: { width: 1200, height: 620 },
  });
  const page = await browser.newPage();
  page.setDefaultTimeout(90_000);
  await page.goto(`http://127.0.0.1:${port}/?folder=${folder}`);
  try {
    console.log(JSON.stringify(await session(page)));
  } catch (error) {
    if (picture) await page.screenshot({ path: picture });
    throw error;
  }
} finally {
  await browser?.close();
  vscode?.kill();
  await sleep(500);
  rmSync(data, { recursive: true, force: true, maxRetries: 5 });
}
