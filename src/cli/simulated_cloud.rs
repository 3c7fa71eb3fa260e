//! `outrigger simulated-cloud`: runs the simulated EC2 as a separate process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use jiff::SignedDuration;
use tokio::signal::unix::{SignalKind, signal};

use super::args::MalformedArgument;
use crate::catalog::{self, Catalog};
use crate::config::settings::{LogFormat, LogLevel};
use crate::host::files;
use crate::providers::simulated::CloudHandle;
use crate::providers::simulated::server::{listen, serve};
use crate::telemetry::report_log;

#[derive(Args, Debug)]
pub(crate) struct SimulatedCloudArgs {
    /// Loopback address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Instance types: a table in the format of the built-in catalog, or the JSON of Karpenter's
    /// kwok provider
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
    /// Time from the launch of an instance until its Node registers
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    boot: SignedDuration,
}

fn parse_duration(text: &str) -> Result<SignedDuration, MalformedArgument> {
    match text.parse::<SignedDuration>() {
        Ok(duration) if duration >= SignedDuration::ZERO => Ok(duration),
        _ => Err(MalformedArgument("2s or 1m30s")),
    }
}

pub(crate) fn execute(arguments: SimulatedCloudArgs) -> anyhow::Result<ExitCode> {
    // The log level never changes.
    drop(report_log::init(LogFormat::Text, LogLevel::Info, None));
    let catalog = match &arguments.catalog {
        None => Catalog::shipped(),
        Some(path) => catalog::parse(&path.display().to_string(), &files::read_text(path)?)?,
    };
    let runtime = super::create_runtime()?;
    let served = runtime.block_on(async {
        let listener = listen(arguments.listen).await?;
        let address = listener.local_addr().context("cannot read the listen address")?;
        // The parent process waits for this line and reads the port from it.
        println!("simulated cloud listens on {address}");
        let cloud = CloudHandle::start(Arc::new(catalog), arguments.boot);
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        serve(listener, cloud, shutdown).await?;
        Ok(ExitCode::SUCCESS)
    });
    super::shut_down_runtime(runtime);
    served
}
