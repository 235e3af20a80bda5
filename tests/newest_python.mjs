// Compiles all Python of the project with Python 3.14, which Pyodide brings: `python -m tests.sources` in Node.
import { fileURLToPath } from 'node:url';
import { loadPyodide } from 'pyodide';

const python = await loadPyodide();
python.mountNodeFS('/project', fileURLToPath(new URL('..', import.meta.url)));
const refusals = python.runPython(`
import sys
assert sys.version_info[:2] == (3, 14), sys.version
sys.path.insert(0, "/project")
from tests import sources
sources.main()
`);
process.exit(refusals ? 1 : 0);
