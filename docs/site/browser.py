# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven by its DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import Any

NAMES = 'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'
INSTALL = (
    'expected Chromium, got none of '
    f'{", ".join(NAMES)} on PATH: install it, on Debian by `apt-get install chromium`'
)
FLAGS = (
    '--headless=new',
    '--no-sandbox',  # pages of our own alone are opened
    '--disable-gpu',
    '--disable-dev-shm-usage',
    '--disable-background-networking',
    '--disable-component-update',
    '--no-first-run',
    '--hide-scrollbars',
    '--remote-debugging-pipe',  # which reads file 3 and writes file 4
)


class Browser:
    """A browser with one page; a context manager.

    Attributes:
      problems: the errors in the console, and requests to other hosts, so far.
    """

    def __init__(self, host: str) -> None:
        """Start the browser.

        Args:
          host: where pages are; a request to another one is a problem.

        Raises:
          FileNotFoundError: there is no Chromium.
        """
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise FileNotFoundError(INSTALL)
        self.problems: list[str] = []
        self._host = host
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [program, *FLAGS, f'--user-data-dir={self._profile.name}']
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ['sh', '-c', shell, 'sh', *command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, 'wb'), os.fdopen(ours_in, 'rb')
        self._number, self._rest = 0, b''
        self._session: str | None = None
        target = self.send('Target.createTarget', url='about:blank')['targetId']
        options = {'targetId': target, 'flatten': True}
        self._session = self.send('Target.attachToTarget', **options)['sessionId']
        for domain in 'Page', 'Runtime', 'Log', 'Network':
            self.send(f'{domain}.enable')

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._out.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result or raise RuntimeError."""
        self._number += 1
        message = {'id': self._number, 'method': method, 'params': params}
        if self._session is not None:
            message['sessionId'] = self._session
        self._out.write(json.dumps(message).encode() + b'\0')
        self._out.flush()
        while (answer := self._receive()).get('id') != self._number:
            pass
        if 'error' in answer:
            raise RuntimeError(f'{method}: {answer["error"]["message"]}')
        return answer['result']

    def wait_for(self, event: str) -> None:
        """Wait for an event."""
        while self._receive().get('method') != event:
            pass

    def _receive(self) -> dict[str, Any]:
        while b'\0' not in self._rest:
            part = os.read(self._in.fileno(), 1 << 16)
            if not part:
                raise RuntimeError('expected an answer of Chromium, got its end')
            self._rest += part
        text, _, self._rest = self._rest.partition(b'\0')
        message: dict[str, Any] = json.loads(text)
        self._note(message.get('method'), message.get('params', {}))
        return message

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        """Note what an event says of a problem."""
        if event == 'Runtime.exceptionThrown':
            details = params['exceptionDetails']
            thrown = details.get('exception', {}).get('description', '')
            self.problems.append(f'{details["text"]} {thrown}')
        elif event == 'Runtime.consoleAPICalled' and params['type'] == 'error':
            self.problems.append(' '.join(str(x.get('value')) for x in params['args']))
        elif event == 'Log.entryAdded' and params['entry']['level'] == 'error':
            entry = params['entry']
            self.problems.append(f'{entry["text"]} {entry.get("url", "")}')
        elif event == 'Network.requestWillBeSent':
            url = params['request']['url']
            if not url.startswith((self._host, 'data:', 'blob:')):
                self.problems.append(f'request to another host: {url}')

    def colour(self, name: str) -> None:
        """Prefer the colours 'light' or 'dark', as the settings of a system do."""
        scheme = {'name': 'prefers-color-scheme', 'value': name}
        self.send('Emulation.setEmulatedMedia', features=[scheme])

    def open(self, url: str, *, width: int) -> None:
        """Open an address in a window of some width."""
        size = {'width': width, 'height': 844, 'deviceScaleFactor': 1}
        self.send('Emulation.setDeviceMetricsOverride', **size, mobile=width < 600)
        self.send('Page.navigate', url=url)
        self.wait_for('Page.loadEventFired')

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, or of its promise."""
        options = {'awaitPromise': True, 'returnByValue': True}
        answer = self.send('Runtime.evaluate', expression=expression, **options)
        return answer['result'].get('value')

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        return base64.b64decode(self.send('Page.captureScreenshot')['data'])
