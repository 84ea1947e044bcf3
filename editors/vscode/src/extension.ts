import * as vscode from "vscode";
import {
  LanguageClient,
  LanguageClientOptions,
  RevealOutputChannelOn,
  ServerOptions,
} from "vscode-languageclient/node";
import { serverCommand } from "./server";

const FIX_ALL = "source.fixAll.trainify";

let client: LanguageClient | undefined;
let log: vscode.LogOutputChannel;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  log = vscode.window.createOutputChannel("trainify", { log: true });
  context.subscriptions.push(
    log,
    vscode.commands.registerCommand("trainify.fixAll", fixAll),
    vscode.commands.registerCommand("trainify.restart", restart),
    vscode.commands.registerCommand("trainify.showLog", () => log.show()),
    vscode.workspace.onDidChangeConfiguration(async (change) => {
      const startedBy = ["trainify.command", "trainify.interpreter"];
      if (startedBy.some((setting) => change.affectsConfiguration(setting))) {
        await restart();
      }
    }),
  );
  await start();
}

export async function deactivate(): Promise<void> {
  await stop();
}

async function start(): Promise<void> {
  const [command, ...args] = await serverCommand();
  log.info(`starting ${[command, ...args].join(" ")}`);
  const server: ServerOptions = { command, args };
  const options: LanguageClientOptions = {
    documentSelector: [
      { language: "python", scheme: "file" },
      { language: "python", scheme: "untitled" },
      { language: "python", scheme: "vscode-notebook-cell" },
    ],
    outputChannel: log,
    revealOutputChannelOn: RevealOutputChannelOn.Never,
  };
  client = new LanguageClient("trainify", "trainify", server, options);
  try {
    await client.start();
  } catch (error) {
    log.error(String(error));
    await missing(command);
  }
}

/** Say how to get the server, once per start. */
async function missing(command: string): Promise<void> {
  const show = "Show the log";
  const answer = await vscode.window.showErrorMessage(
    `trainify does not start with ${command}. Install it with: pip install "trainify[lsp]"`,
    show,
  );
  if (answer === show) {
    log.show();
  }
}

async function stop(): Promise<void> {
  const stopping = client;
  client = undefined;
  if (stopping?.isRunning()) {
    await stopping.stop();
  }
}

async function restart(): Promise<void> {
  await stop();
  await start();
}

/** The same as saving with `"source.fixAll.trainify": "explicit"` in editor.codeActionsOnSave. */
async function fixAll(): Promise<void> {
  await vscode.commands.executeCommand("editor.action.codeAction", {
    kind: FIX_ALL,
    apply: "first",
  });
}
