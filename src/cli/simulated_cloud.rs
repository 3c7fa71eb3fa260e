//! `outrigger simulated-cloud`: the simulated EC2 in a process of its own.
//! It must not know who launches with it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use jiff::SignedDuration;
use tokio::signal::unix::{SignalKind, signal};

use crate::catalog::{self, Catalog};
use crate::config::settings::{LogFormat, LogLevel};
use crate::host::files;
use crate::providers::simulated::CloudHandle;
use crate::providers::simulated::server::{listen, serve};
use crate::telemetry::report_log;

#[derive(Args, Debug)]
pub(crate) struct SimulatedCloudArgs {
    /// Loopback address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Instance types: a table in the shipped format, or JSON as Karpenter's kwok provider has it
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
    /// Time from a launch until the instance's Node registers
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    boot: SignedDuration,
}

fn duration(text: &str) -> Result<SignedDuration, String> {
    match text.parse::<SignedDuration>() {
        Ok(duration) if duration >= SignedDuration::ZERO => Ok(duration),
        _ => Err("write it like 2s or 1m30s".to_owned()),
    }
}

pub(crate) fn execute(arguments: SimulatedCloudArgs) -> anyhow::Result<ExitCode> {
    // Nothing changes its level.
    drop(report_log::init(LogFormat::Text, LogLevel::Info, None));
    let catalog = match &arguments.catalog {
        None => Catalog::shipped(),
        Some(path) => catalog::parse(&path.display().to_string(), &files::read_text(path)?)?,
    };
    let runtime = super::runtime()?;
    let served = runtime.block_on(async {
        let listener = listen(arguments.listen).await?;
        let address = listener
            .local_addr()
            .context("find the address listened on")?;
        // Whoever started this waits for the line, and reads the port from it.
        println!("simulated cloud listens on {address}");
        let cloud = CloudHandle::start(Arc::new(catalog), arguments.boot);
        let mut terminate = signal(SignalKind::terminate()).context("listen to signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen to signals")?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        serve(listener, cloud, shutdown).await?;
        Ok(ExitCode::SUCCESS)
    });
    super::end(runtime);
    served
}
