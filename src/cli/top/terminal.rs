//! The terminal of whoever watches: taken over, drawn on, listened to, and given back.
//! It must not know what is drawn, nor what keys are for beyond their names.

use std::{io, thread};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};
use tokio::sync::mpsc;

use super::app::{App, Key, View};
use super::render;
use crate::host::clock;

/// Keys that wait to be looked at; who types is waited for when there are more.
const KEYS: usize = 64;

/// A terminal that is taken over for as long as this is there, also if something panics.
pub(super) struct Session(DefaultTerminal);

impl Session {
    pub(super) fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| give_back())
    }

    /// Draws a screen, of whatever size the terminal is now.
    pub(super) fn draw(&mut self, screen: &mut App) -> io::Result<()> {
        let now = clock::now();
        self.0.draw(|frame| {
            let area = frame.area();
            screen.resize(render::rows(area.height));
            render::draw(screen, area, frame.buffer_mut(), now);
        })?;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        give_back();
    }
}

/// There is nobody left to tell that a terminal is gone.
fn give_back() {
    drop(ratatui::try_restore());
}

/// What is heard of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalInput {
    Key(Key),
    /// It has another size.
    Resized,
}

/// Listens until nobody wants to hear more, on a thread that ends with the process. It ends by
/// itself when the terminal is gone.
pub(super) fn listen() -> io::Result<mpsc::Receiver<TerminalInput>> {
    let (inputs, heard) = mpsc::channel(KEYS);
    thread::Builder::new()
        .name("keys".to_owned())
        .spawn(move || {
            while let Ok(event) = read() {
                let input = match event {
                    Event::Key(own) => key(own).map(TerminalInput::Key),
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
    Ok(heard)
}

/// What a key is for.
pub(super) fn key(event: KeyEvent) -> Option<Key> {
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
