//! `outrigger top`: a full-screen live view of the clusters of the local daemon.

// Durations, quantities and percentages as short strings.
mod format;
// Tables without widths: columns, rows, sort order.
mod table;
// Column widths for a given screen width.
mod column_layout;
// Data received from the daemon, with its age.
mod daemon_data;
// View of all clusters.
mod fleet_view;
// View of the nodes of a cluster.
mod nodes_view;
// View of pending pods.
mod pods_view;
// View of recent activity.
mod activity_view;
// State of the screen and key bindings.
mod app;
// Rendering of a screen at any size.
mod render;
// Raw mode, input and output of the terminal.
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

/// Time limit for the daemon's response; the daemon waits less for its engines.
const PATIENCE: Duration = Duration::from_secs(15);

/// The interval at which the screen is redrawn to update ages.
const TICK: Duration = Duration::from_secs(1);

/// The shortest and the longest value of `--interval`.
const INTERVALS: (SignedDuration, SignedDuration) = (
    SignedDuration::from_millis(200),
    SignedDuration::from_hours(1),
);

/// Sort keys of other tools, with their names here.
const ALIASES: [(&str, &str); 3] = [
    ("creation", "age"),
    ("instance-type", "type"),
    ("capacity-type", "capacity"),
];

const KEYS: &str = "Keys: tab and 1 to 4 change the view; arrows, j, k, page up and page down \
                    scroll, left and right scroll by pages; enter opens a cluster, [ and ] switch \
                    clusters; s sorts by the next column, r reverses the order; p pauses; q, esc \
                    and ctrl-c quit.\n\ntop requires a terminal, and the same permissions as \
                    `outrigger status`.";

#[derive(Args, Debug)]
#[command(after_help = KEYS)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    socket: SocketArguments,
    /// The cluster to show; default: all clusters
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Refresh interval
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "2s")]
    interval: SignedDuration,
    /// Sort key of the nodes: name, pool, type, zone, capacity, pods, age, price, state, or a
    /// displayed resource or label; append =asc or =dsc for the order
    #[arg(long, value_name = "KEY")]
    node_sort: Option<String>,
    /// Comma-separated node labels to show as columns
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    extra_labels: Vec<String>,
    /// Comma-separated resources to show the usage of
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
        return Err(format!(
            "the interval must be between {least:#} and {most:#}"
        ));
    }
    Ok(own)
}

impl TopArgs {
    /// Validates the arguments and converts them to settings.
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
            bail!("too many columns: reduce --extra-labels and --resources");
        }
        Ok(settings)
    }
}

/// Parses a sort key. Returns the key and whether the order is descending. The oldest nodes have
/// the greatest age.
fn node_sort(text: &str, keys: &[String]) -> anyhow::Result<(String, bool)> {
    let (name, order) = text.rsplit_once('=').unwrap_or((text, "asc"));
    let is_descending = match order {
        "asc" => false,
        "dsc" | "desc" => true,
        _ => bail!(
            "the sort order must be asc or dsc, not {:?}",
            bounded(order)
        ),
    };
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let key = alias.map_or(name, |(_, own)| own);
    if !keys.iter().any(|own| own == key) {
        bail!(
            "cannot sort nodes by {:?}; use one of {}",
            bounded(name),
            keys.join(", ")
        );
    }
    // Ascending creation time is descending age.
    let is_turned = name == "creation";
    Ok((key.to_owned(), is_descending != is_turned))
}

pub(crate) fn execute(arguments: &TopArgs, has_colour: bool) -> anyhow::Result<ExitCode> {
    let mut screen = App::new(arguments.settings(has_colour)?);
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top requires a terminal; use outrigger status instead");
    }
    let socket = &arguments.socket.socket;
    super::wait_for(async {
        greet(&mut screen, socket).await?;
        // From here on a signal ends the loop, so that the terminal is restored.
        let mut watch = Watch::new(socket.clone())?;
        let mut session = Session::open().context("cannot open the terminal")?;
        watch.run(&mut session, &mut screen).await
    })??;
    Ok(ExitCode::SUCCESS)
}

/// Sends a first request before drawing, so that a connection error is printed as plain text.
async fn greet(screen: &mut App, socket: &Path) -> anyhow::Result<()> {
    let answer = answer(socket, &DaemonRequest::Fleet).await;
    let answer = answer.map_err(|why| anyhow!(why))?;
    screen.heard.take(Ok(answer), clock::now());
    let only = screen.settings.only.as_deref();
    if let Some(name) = only.filter(|_| screen.heard.clusters(only).is_empty()) {
        let all = screen.heard.clusters(None).into_iter();
        let names: Vec<String> = all.map(|own| bounded(&own.name)).collect();
        bail!(
            "the daemon has no cluster {name:?}; it has {}",
            names.join(", ")
        );
    }
    Ok(())
}

/// Sends a request to the daemon and returns its response, or the cause of a failure.
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
    let version = || "the daemon has a different version".to_owned();
    match (status, body) {
        (StatusCode::OK, body) => serde_json::from_slice(body).map_err(|_| version()),
        // The daemon does not have this path.
        (StatusCode::NOT_FOUND, []) => Err(version()),
        (_, body) => Err(format!(
            "the daemon returned {status}: {}",
            bounded(&String::from_utf8_lossy(body))
        )),
    }
}

/// A request to the daemon without a response yet.
type PendingRequest = JoinHandle<Result<DaemonResponse, String>>;

/// Requests data, draws the screen and handles keys until the user quits.
struct Watch {
    socket: PathBuf,
    inputs: mpsc::Receiver<TerminalInput>,
    ends: [Signal; 4],
    asked: Option<PendingRequest>,
    /// When the next request is due.
    due: Instant,
}

impl Watch {
    fn new(socket: PathBuf) -> anyhow::Result<Self> {
        let catch = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            socket,
            inputs: listen().context("cannot read keys")?,
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
            session
                .draw(screen)
                .context("cannot draw on the terminal")?;
            self.ask(screen);
            let act = tokio::select! {
                input = self.inputs.recv() => match input {
                    Some(input) => self.handle_input(input, screen),
                    // The terminal is closed.
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

    /// Sends a request if one is due.
    fn ask(&mut self, screen: &App) {
        if self.asked.is_some() || screen.is_paused || self.due > clock::monotonic() {
            return;
        }
        let (socket, asking) = (self.socket.clone(), screen.asking());
        let said = async move { answer(&socket, &asking).await };
        self.asked = Some(tokio::spawn(said));
    }

    /// Handles all pending input before the next draw.
    fn handle_input(&mut self, first: TerminalInput, screen: &mut App) -> Action {
        let mut input = Some(first);
        while let Some(own) = input {
            let act = match own {
                TerminalInput::Key(key) => screen.press(key, clock::now()),
                TerminalInput::Resized => Action::Nothing,
            };
            match act {
                Action::Quit => return Action::Quit,
                // The response to the current request is no longer needed.
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
    let heard = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    select_all(heard).await;
}

/// Waits for the current request. Waits forever if there is none.
async fn joined(asked: &mut Option<PendingRequest>) -> Result<DaemonResponse, String> {
    match asked {
        Some(asked) => match asked.await {
            Ok(said) => said,
            Err(error) => Err(text::chain(&error)),
        },
        None => std::future::pending().await,
    }
}
