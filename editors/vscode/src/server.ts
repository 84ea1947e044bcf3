import * as vscode from "vscode";

/** What the Python extension exports of itself, as far as it is used here. */
interface PythonExtension {
  environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(
      environment: unknown,
    ): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
  };
}

// `python -m` would look for modules in the folder that it is started in.
const RUN = "import sys; sys.path[:] = filter(None, sys.path); import runpy; " +
  "sys.argv[0] = 'trainify'; runpy.run_module('trainify', run_name='__main__')";

/** The command that starts the server: as set, with the chosen Python, or as it is installed. */
export async function serverCommand(): Promise<[string, ...string[]]> {
  const settings = vscode.workspace.getConfiguration("trainify");
  const [command, ...args] = settings.get<string[]>("command", []);
  if (command) {
    return [command, ...args];
  }
  const python = settings.get<string>("interpreter") || (await chosenPython());
  return python ? [python, "-c", RUN, "lsp"] : ["trainify", "lsp"];
}

async function chosenPython(): Promise<string | undefined> {
  const extension = vscode.extensions.getExtension<PythonExtension>("ms-python.python");
  if (!extension) {
    return undefined;
  }
  const api = extension.isActive ? extension.exports : await extension.activate();
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const active = api.environments.getActiveEnvironmentPath(folder);
  const environment = await api.environments.resolveEnvironment(active);
  return environment?.executable.uri?.fsPath;
}
