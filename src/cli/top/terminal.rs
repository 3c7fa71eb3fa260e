//! The terminal: opens it, draws on it, reads keys and restores it.

use std::{io, thread};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};
use tokio::sync::mpsc;

use super::app::{App, Key, View};
use super::render;
use crate::host::clock;

/// The capacity of the key queue. The reader thread blocks if the queue is full.
const KEYS: usize = 64;

/// An open terminal. Dropping it restores the terminal, also during a panic.
pub(super) struct Session(DefaultTerminal);

impl Session {
    pub(super) fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| restore_terminal())
    }

    /// Draws the screen at the current size of the terminal.
    pub(super) fn draw(&mut self, screen: &mut App) -> io::Result<()> {
        let now = clock::now();
        self.0.draw(|frame| {
            let area = frame.area();
            screen.set_page_rows(render::table_rows(area.height));
            render::draw_screen(screen, area, frame.buffer_mut(), now);
        })?;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// Restores the terminal. A failure cannot be reported.
fn restore_terminal() {
    drop(ratatui::try_restore());
}

/// An input event of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalInput {
    Key(Key),
    /// The size of the terminal changed.
    Resized,
}

/// Reads input on a thread until the receiver is dropped or the terminal is closed.
pub(super) fn read_input() -> io::Result<mpsc::Receiver<TerminalInput>> {
    let (inputs, receiver) = mpsc::channel(KEYS);
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        while let Ok(event) = read() {
            let input = match event {
                Event::Key(event) => key_command(event).map(TerminalInput::Key),
                Event::Resize(..) => Some(TerminalInput::Resized),
                _ => None,
            };
            if let Some(input) = input
                && inputs.blocking_send(input).is_err()
            {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Returns the command of a key, if it has one.
pub(super) fn key_command(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let with_control = event.modifiers.contains(KeyModifiers::CONTROL);
    Some(match event.code {
        KeyCode::Char('c') if with_control => Key::Quit,
        KeyCode::Char(_) if with_control => return None,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('j') | KeyCode::Down => Key::Down,
        KeyCode::Char('k') | KeyCode::Up => Key::Up,
        KeyCode::Char('h') | KeyCode::Left | KeyCode::PageUp => Key::PageUp,
        KeyCode::Char('l' | ' ') | KeyCode::Right | KeyCode::PageDown => Key::PageDown,
        KeyCode::Char('g') | KeyCode::Home => Key::First,
        KeyCode::Char('G') | KeyCode::End => Key::Last,
        KeyCode::Tab => Key::NextView,
        KeyCode::BackTab => Key::PreviousView,
        KeyCode::Char('1') => Key::View(View::Fleet),
        KeyCode::Char('2') => Key::View(View::Nodes),
        KeyCode::Char('3') => Key::View(View::Pods),
        KeyCode::Char('4') => Key::View(View::Timeline),
        KeyCode::Char(']') => Key::NextCluster,
        KeyCode::Char('[') => Key::PreviousCluster,
        KeyCode::Enter => Key::Open,
        KeyCode::Char('s') => Key::Sort,
        KeyCode::Char('r' | 'S') => Key::Reverse,
        KeyCode::Char('p') => Key::Pause,
        _ => return None,
    })
}
