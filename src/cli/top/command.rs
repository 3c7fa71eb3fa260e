//! The arguments of `outrigger top`, and its loop: requests data, draws the screen, handles keys.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use futures::future::select_all;
use http::{Method, StatusCode};
use jiff::SignedDuration;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until};

use super::app::{Action, App, Settings};
use super::daemon_data::{DaemonRequest, DaemonResponse};
use super::nodes_view;
use super::terminal::{Session, TerminalInput, read_input};
use crate::cli::args::{MalformedArgument, SocketArguments};
use crate::cli::wait_for;
use crate::host::clock;
use crate::host::text::{self, bounded_line};
use crate::runtime::control::client::{ControlError, send_request, send_without_body};
use crate::runtime::control::{INVENTORY, STATUS};
use crate::runtime::control_inventory::InventoryRequest;

/// Time limit for the daemon's response; the daemon waits less for its engines.
const PATIENCE: Duration = Duration::from_secs(15);

/// The interval at which the screen is redrawn to update ages.
const TICK: Duration = Duration::from_secs(1);

/// The shortest and the longest value of `--interval`.
const INTERVALS: (SignedDuration, SignedDuration) =
    (SignedDuration::from_millis(200), SignedDuration::from_hours(1));

/// Sort keys of other tools, each with the corresponding key of this view.
const ALIASES: [(&str, &str); 3] =
    [("creation", "age"), ("instance-type", "type"), ("capacity-type", "capacity")];

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
    #[arg(long, value_name = "DURATION", value_parser = parse_interval, default_value = "2s")]
    interval: SignedDuration,
    /// Sort key of the nodes: name, pool, type, zone, capacity, pods, age, price, state, or a
    /// displayed resource or label; append =asc or =dsc for the order
    #[arg(long, value_name = "KEY")]
    node_sort: Option<String>,
    /// Comma-separated node labels to show as columns
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    extra_labels: Vec<String>,
    /// Comma-separated resources to show the usage of
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "cpu,memory")]
    resources: Vec<String>,
}

/// Why a refresh interval is invalid.
#[derive(Debug, Error)]
enum IntervalError {
    #[error(transparent)]
    Malformed(#[from] MalformedArgument),
    #[error("the interval must be between {:#} and {:#}", INTERVALS.0, INTERVALS.1)]
    OutOfRange,
}

fn parse_interval(text: &str) -> Result<SignedDuration, IntervalError> {
    let interval: SignedDuration = text.parse().map_err(|_| MalformedArgument("2s or 500ms"))?;
    let (min, max) = INTERVALS;
    if interval < min || interval > max {
        return Err(IntervalError::OutOfRange);
    }
    Ok(interval)
}

impl TopArgs {
    /// Validates the arguments and converts them to settings.
    fn validated_settings(&self, has_colour: bool) -> anyhow::Result<Settings> {
        let mut settings = Settings {
            only: self.cluster.clone(),
            interval: self.interval,
            labels: trimmed_names(&self.extra_labels),
            resources: trimmed_names(&self.resources),
            node_sort: None,
            has_colour,
        };
        if let Some(text) = &self.node_sort {
            let keys = nodes_view::sort_keys(&InventoryRequest {
                cluster: String::new(),
                labels: settings.labels.clone(),
                resources: settings.resources.clone(),
            });
            settings.node_sort = Some(node_sort(text, &keys)?);
        }
        let request = InventoryRequest {
            labels: settings.labels.clone(),
            resources: settings.resources.clone(),
            ..InventoryRequest::default()
        };
        if request.query_columns().is_none() {
            bail!("too many columns: reduce --extra-labels and --resources");
        }
        Ok(settings)
    }
}

/// Returns the names without surrounding space, and without empty names.
fn trimmed_names(names: &[String]) -> Vec<String> {
    let names = names.iter().map(|name| name.trim().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

/// Parses a sort key. Returns the key and whether the order is descending. The oldest nodes have
/// the greatest age.
pub(super) fn node_sort(text: &str, keys: &[String]) -> anyhow::Result<(String, bool)> {
    let (name, order) = text.rsplit_once('=').unwrap_or((text, "asc"));
    let is_descending = match order {
        "asc" => false,
        "dsc" | "desc" => true,
        _ => bail!("the sort order must be asc or dsc, not {:?}", bounded_line(order)),
    };
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let key = alias.map_or(name, |(_, key)| key);
    if !keys.iter().any(|known| known == key) {
        bail!("cannot sort nodes by {:?}; use one of {}", bounded_line(name), keys.join(", "));
    }
    // Ascending creation time is descending age.
    let is_turned = name == "creation";
    Ok((key.to_owned(), is_descending != is_turned))
}

pub(crate) fn execute(arguments: &TopArgs, has_colour: bool) -> anyhow::Result<ExitCode> {
    let mut screen = App::new(arguments.validated_settings(has_colour)?);
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top requires a terminal; use outrigger status instead");
    }
    let socket = &arguments.socket.socket;
    wait_for(async {
        send_first_request(&mut screen, socket).await?;
        // From here on a signal ends the loop, so that the terminal is restored.
        let mut watch = Watch::new(socket.clone())?;
        let mut session = Session::open().context("cannot open the terminal")?;
        watch.run(&mut session, &mut screen).await
    })??;
    Ok(ExitCode::SUCCESS)
}

/// Sends a first request before drawing, so that a connection error is printed as plain text.
async fn send_first_request(screen: &mut App, socket: &Path) -> anyhow::Result<()> {
    let response = request_daemon(socket, &DaemonRequest::Fleet).await?;
    screen.data.store_response(response, clock::now());
    let only = screen.settings.only.as_deref();
    if let Some(name) = only.filter(|_| screen.data.clusters(only).is_empty()) {
        let all = screen.data.clusters(None).into_iter();
        let names: Vec<String> = all.map(|cluster| bounded_line(&cluster.name)).collect();
        bail!("the daemon has no cluster {name:?}; it has {}", names.join(", "));
    }
    Ok(())
}

/// Why a request to the daemon has no usable response.
#[derive(Debug, Error)]
enum RequestError {
    #[error("{0}")]
    Encode(serde_json::Error),
    #[error("{}", text::error_chain(.0))]
    Control(ControlError),
    #[error("the daemon has a different version")]
    Version,
    #[error("the daemon returned {status}: {body}")]
    Refused { status: StatusCode, body: String },
    #[error("{}", text::error_chain(.0))]
    Task(JoinError),
}

/// Sends a request to the daemon and returns its response, or the cause of a failure.
async fn request_daemon(
    socket: &Path,
    request: &DaemonRequest,
) -> Result<DaemonResponse, RequestError> {
    let response = match request {
        DaemonRequest::Fleet => send_without_body(socket, Method::GET, STATUS, PATIENCE).await,
        DaemonRequest::Inside(inventory) => {
            let body = serde_json::to_vec(inventory).map_err(RequestError::Encode)?;
            send_request(socket, Method::POST, INVENTORY, body.into(), PATIENCE).await
        }
    };
    let (status, body) = response.map_err(RequestError::Control)?;
    match request {
        DaemonRequest::Fleet => parse_response(status, &body).map(DaemonResponse::Fleet),
        DaemonRequest::Inside(_) => parse_response(status, &body)
            .map(|inventory| DaemonResponse::Inside(Box::new(inventory))),
    }
}

fn parse_response<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, RequestError> {
    match (status, body) {
        (StatusCode::OK, body) => serde_json::from_slice(body).map_err(|_| RequestError::Version),
        // The daemon does not have this path.
        (StatusCode::NOT_FOUND, []) => Err(RequestError::Version),
        (_, body) => Err(RequestError::Refused {
            status,
            body: bounded_line(&String::from_utf8_lossy(body)),
        }),
    }
}

/// A request to the daemon without a response yet.
type PendingRequest = JoinHandle<Result<DaemonResponse, RequestError>>;

/// Requests data, draws the screen and handles keys until the user quits.
struct Watch {
    socket: PathBuf,
    inputs: mpsc::Receiver<TerminalInput>,
    ends: Vec<Signal>,
    asked: Option<PendingRequest>,
    /// When the next request is due.
    due: Instant,
}

impl Watch {
    fn new(socket: PathBuf) -> anyhow::Result<Self> {
        let inputs = read_input().context("cannot read keys")?;
        let ends = [
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
        ];
        let ends: io::Result<Vec<Signal>> = ends.into_iter().map(signal).collect();
        Ok(Self {
            socket,
            inputs,
            ends: ends.context("cannot listen for signals")?,
            asked: None,
            due: clock::monotonic_now(),
        })
    }

    async fn run(&mut self, session: &mut Session, screen: &mut App) -> anyhow::Result<()> {
        loop {
            session.draw(screen).context("cannot draw on the terminal")?;
            self.request_if_due(screen);
            let act = tokio::select! {
                input = self.inputs.recv() => match input {
                    Some(input) => self.handle_input(input, screen),
                    // The terminal is closed.
                    None => Action::Quit,
                },
                said = current_response(&mut self.asked) => {
                    self.on_response(said, screen);
                    Action::Nothing
                }
                () = sleep_until(self.due), if self.asked.is_none() && !screen.is_paused => {
                    Action::Nothing
                }
                () = sleep(TICK) => Action::Nothing,
                () = any_signal(&mut self.ends) => Action::Quit,
            };
            if act == Action::Quit {
                return Ok(());
            }
        }
    }

    /// Sends a request if one is due.
    fn request_if_due(&mut self, screen: &App) {
        if self.asked.is_some() || screen.is_paused || self.due > clock::monotonic_now() {
            return;
        }
        let (socket, request) = (self.socket.clone(), screen.next_request());
        let response = async move { request_daemon(&socket, &request).await };
        self.asked = Some(tokio::spawn(response));
    }

    /// Handles all pending input before the next draw.
    fn handle_input(&mut self, first: TerminalInput, screen: &mut App) -> Action {
        let mut input = Some(first);
        while let Some(event) = input {
            let act = match event {
                TerminalInput::Key(key) => screen.handle_key(key, clock::now()),
                TerminalInput::Resized => Action::Nothing,
            };
            match act {
                Action::Quit => return Action::Quit,
                // The response to the current request is no longer needed.
                Action::Ask => {
                    self.abort_request();
                    self.due = clock::monotonic_now();
                }
                Action::Nothing => {}
            }
            input = self.inputs.try_recv().ok();
        }
        Action::Nothing
    }

    fn abort_request(&mut self) {
        if let Some(request) = self.asked.take() {
            request.abort();
        }
    }

    fn on_response(&mut self, response: Result<DaemonResponse, RequestError>, screen: &mut App) {
        self.asked = None;
        match response {
            Ok(response) => screen.data.store_response(response, clock::now()),
            Err(error) => screen.data.fault = Some(error.to_string()),
        }
        let interval = Duration::try_from(screen.settings.interval).unwrap_or(TICK);
        self.due = clock::monotonic_now() + interval;
    }
}

/// Waits for the first of some signals.
async fn any_signal(signals: &mut [Signal]) {
    let received = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    select_all(received).await;
}

/// Waits for the current request. Waits forever if there is none.
async fn current_response(
    request: &mut Option<PendingRequest>,
) -> Result<DaemonResponse, RequestError> {
    match request {
        Some(request) => match request.await {
            Ok(response) => response,
            Err(error) => Err(RequestError::Task(error)),
        },
        None => std::future::pending().await,
    }
}
