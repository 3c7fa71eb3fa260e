//! `outrigger top`: the clusters of this host's daemon on a full screen, while they change.
//! It must not know how anything is found out: the daemon tells it.

mod format;
mod table;
mod column_layout;
mod daemon_data;
mod fleet_view;
mod nodes_view;
mod pods_view;
mod activity_view;
mod app;
mod render;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use futures::future::select_all;
use http::{Method, StatusCode};
use jiff::SignedDuration;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::args::SocketArguments;
use crate::host::clock;
use crate::host::text::{self, bounded};
use crate::runtime::control::client::{ask, send};
use crate::runtime::control::inventory::InventoryRequest;
use crate::runtime::control::{INVENTORY, STATUS};
use app::{Action, App, Settings};
use daemon_data::{DaemonRequest, DaemonResponse};
use terminal::{Session, TerminalInput, listen};

/// Time for the daemon to answer: it waits for its engines for less.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is shown grows old, and says so, this often.
const TICK: Duration = Duration::from_secs(1);

/// The daemon is not asked more often than the first, nor less often than the other.
const INTERVALS: (SignedDuration, SignedDuration) = (
    SignedDuration::from_millis(200),
    SignedDuration::from_hours(1),
);

/// Other words of other tools for what nodes are sorted by.
const ALIASES: [(&str, &str); 3] = [
    ("creation", "age"),
    ("instance-type", "type"),
    ("capacity-type", "capacity"),
];

const KEYS: &str = "Keys: tab and 1 to 4 change the view; arrows, j, k, page up and page down \
                    scroll, left and right by pages; enter opens a cluster, [ and ] go to others; \
                    s sorts by the next column, r turns the order; p pauses; q, esc and ctrl-c \
                    quit.\n\nIt wants a terminal, and may ask what `outrigger status` may.";

#[derive(Args, Debug)]
#[command(after_help = KEYS)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    socket: SocketArguments,
    /// One cluster; all if missing
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// How often the daemon is asked
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "2s")]
    interval: SignedDuration,
    /// By what nodes are sorted: name, pool, type, zone, capacity, pods, age, price, state, a
    /// resource or a label that is shown; with =asc or =dsc
    #[arg(long, value_name = "KEY")]
    node_sort: Option<String>,
    /// Labels of nodes that have columns of their own, with commas between them
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    extra_labels: Vec<String>,
    /// Resources of which is shown how much is taken, with commas between them
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "cpu,memory"
    )]
    resources: Vec<String>,
}

fn interval(text: &str) -> Result<SignedDuration, String> {
    let own: SignedDuration = text.parse().map_err(|_| "write it like 2s or 500ms")?;
    let (least, most) = INTERVALS;
    if own < least || own > most {
        return Err(format!("an interval is from {least:#} to {most:#}"));
    }
    Ok(own)
}

impl TopArgs {
    /// What is asked for, or why that makes no sense.
    fn settings(&self, has_colour: bool) -> anyhow::Result<Settings> {
        let names = |all: &[String]| -> Vec<String> {
            let all = all.iter().map(|own| own.trim().to_owned());
            all.filter(|own| !own.is_empty()).collect()
        };
        let mut settings = Settings {
            only: self.cluster.clone(),
            interval: self.interval,
            labels: names(&self.extra_labels),
            resources: names(&self.resources),
            node_sort: None,
            has_colour,
        };
        if let Some(text) = &self.node_sort {
            let keys = nodes_view::keys(&InventoryRequest {
                cluster: String::new(),
                labels: settings.labels.clone(),
                resources: settings.resources.clone(),
            });
            settings.node_sort = Some(node_sort(text, &keys)?);
        }
        let question = InventoryRequest {
            labels: settings.labels.clone(),
            resources: settings.resources.clone(),
            ..InventoryRequest::default()
        };
        if question.wanted().is_none() {
            bail!("fewer labels and resources have to be asked for: no screen has room for them");
        }
        Ok(settings)
    }
}

/// By which of these keys, and whether the greatest come first. Of ages the greatest are those of
/// what was created first.
fn node_sort(text: &str, keys: &[String]) -> anyhow::Result<(String, bool)> {
    let (name, order) = text.rsplit_once('=').unwrap_or((text, "asc"));
    let is_descending = match order {
        "asc" => false,
        "dsc" | "desc" => true,
        _ => bail!(
            "nodes are sorted =asc or =dsc, and not {:?}",
            bounded(order)
        ),
    };
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let key = alias.map_or(name, |(_, own)| own);
    if !keys.iter().any(|own| own == key) {
        bail!(
            "nodes are not sorted by {:?}, but by one of {}",
            bounded(name),
            keys.join(", ")
        );
    }
    // Whoever was created first is the oldest.
    let is_turned = name == "creation";
    Ok((key.to_owned(), is_descending != is_turned))
}

pub(crate) fn execute(arguments: &TopArgs, has_colour: bool) -> anyhow::Result<ExitCode> {
    let mut screen = App::new(arguments.settings(has_colour)?);
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("this is no terminal to draw on: outrigger status says how the clusters are doing");
    }
    let socket = &arguments.socket.socket;
    super::wait_for(async {
        greet(&mut screen, socket).await?;
        // A signal that comes from here on leaves the terminal as it was.
        let mut watch = Watch::new(socket.clone())?;
        let mut session = Session::open().context("take over the terminal")?;
        watch.run(&mut session, &mut screen).await
    })??;
    Ok(ExitCode::SUCCESS)
}

/// Asks once before anything is drawn: whoever cannot be asked is told of in plain text.
async fn greet(screen: &mut App, socket: &Path) -> anyhow::Result<()> {
    let answer = answer(socket, &DaemonRequest::Fleet).await;
    let answer = answer.map_err(|why| anyhow!(why))?;
    screen.heard.take(Ok(answer), clock::now());
    let only = screen.settings.only.as_deref();
    if let Some(name) = only.filter(|_| screen.heard.clusters(only).is_empty()) {
        let all = screen.heard.clusters(None).into_iter();
        let names: Vec<String> = all.map(|own| bounded(&own.name)).collect();
        bail!(
            "the daemon drives no cluster {name:?}; it drives {}",
            names.join(", ")
        );
    }
    Ok(())
}

/// What the daemon says, or why it says nothing.
async fn answer(socket: &Path, asking: &DaemonRequest) -> Result<DaemonResponse, String> {
    let said = match asking {
        DaemonRequest::Fleet => ask(socket, Method::GET, STATUS, PATIENCE).await,
        DaemonRequest::Inside(question) => {
            let body = serde_json::to_vec(question).map_err(|error| error.to_string())?;
            send(socket, (Method::POST, INVENTORY), body.into(), PATIENCE).await
        }
    };
    let (status, body) = said.map_err(|error| text::chain(&error))?;
    match asking {
        DaemonRequest::Fleet => read(status, &body).map(DaemonResponse::Fleet),
        DaemonRequest::Inside(_) => {
            read(status, &body).map(|own| DaemonResponse::Inside(Box::new(own)))
        }
    }
}

fn read<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, String> {
    let version = || "the daemon is of another version".to_owned();
    match (status, body) {
        (StatusCode::OK, body) => serde_json::from_slice(body).map_err(|_| version()),
        // It knows no such path.
        (StatusCode::NOT_FOUND, []) => Err(version()),
        (_, body) => Err(format!(
            "the daemon answers {status}: {}",
            bounded(&String::from_utf8_lossy(body))
        )),
    }
}

/// The daemon is being asked.
type PendingRequest = JoinHandle<Result<DaemonResponse, String>>;

/// Asks, draws and listens until it is told to quit.
struct Watch {
    socket: PathBuf,
    inputs: mpsc::Receiver<TerminalInput>,
    ends: [Signal; 4],
    asked: Option<PendingRequest>,
    /// When the daemon is asked next.
    due: Instant,
}

impl Watch {
    fn new(socket: PathBuf) -> anyhow::Result<Self> {
        let catch = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            socket,
            inputs: listen().context("listen for keys")?,
            ends: [
                catch(SignalKind::terminate())?,
                catch(SignalKind::hangup())?,
                catch(SignalKind::interrupt())?,
                catch(SignalKind::quit())?,
            ],
            asked: None,
            due: clock::monotonic(),
        })
    }

    async fn run(&mut self, session: &mut Session, screen: &mut App) -> anyhow::Result<()> {
        loop {
            session.draw(screen).context("draw on the terminal")?;
            self.ask(screen);
            let act = tokio::select! {
                input = self.inputs.recv() => match input {
                    Some(input) => self.heed(input, screen),
                    // The terminal is gone, and with it whoever would read why.
                    None => Action::Quit,
                },
                said = joined(&mut self.asked) => {
                    self.take(said, screen);
                    Action::Nothing
                }
                () = sleep_until(self.due), if self.asked.is_none() && !screen.is_paused => {
                    Action::Nothing
                }
                () = sleep(TICK) => Action::Nothing,
                () = any(&mut self.ends) => Action::Quit,
            };
            if act == Action::Quit {
                return Ok(());
            }
        }
    }

    /// Asks where it is time to.
    fn ask(&mut self, screen: &App) {
        if self.asked.is_some() || screen.is_paused || self.due > clock::monotonic() {
            return;
        }
        let (socket, asking) = (self.socket.clone(), screen.asking());
        let said = async move { answer(&socket, &asking).await };
        self.asked = Some(tokio::spawn(said));
    }

    /// Does what keys are for: all that were pressed meanwhile, before anything is drawn.
    fn heed(&mut self, first: TerminalInput, screen: &mut App) -> Action {
        let mut input = Some(first);
        while let Some(own) = input {
            let act = match own {
                TerminalInput::Key(key) => screen.press(key, clock::now()),
                TerminalInput::Resized => Action::Nothing,
            };
            match act {
                Action::Quit => return Action::Quit,
                // What is under way is of no use any more.
                Action::Ask => {
                    self.forget();
                    self.due = clock::monotonic();
                }
                Action::Nothing => {}
            }
            input = self.inputs.try_recv().ok();
        }
        Action::Nothing
    }

    fn forget(&mut self) {
        if let Some(asked) = self.asked.take() {
            asked.abort();
        }
    }

    fn take(&mut self, said: Result<DaemonResponse, String>, screen: &mut App) {
        self.asked = None;
        screen.heard.take(said, clock::now());
        let interval = Duration::try_from(screen.settings.interval).unwrap_or(TICK);
        self.due = clock::monotonic() + interval;
    }
}

/// Waits for the first of some signals.
async fn any(signals: &mut [Signal]) {
    let heard = signals.iter_mut().map(|own| Box::pin(own.recv()));
    select_all(heard).await;
}

/// Waits for what is under way; for ever where nothing is.
async fn joined(asked: &mut Option<PendingRequest>) -> Result<DaemonResponse, String> {
    match asked {
        Some(asked) => match asked.await {
            Ok(said) => said,
            Err(error) => Err(text::chain(&error)),
        },
        None => std::future::pending().await,
    }
}
