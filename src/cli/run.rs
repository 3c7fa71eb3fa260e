//! `outrigger run`: runs the daemon.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::args::ConfigArguments;
use super::{BAD_CONFIG, FAILED, diagnostics};
use crate::config::Config;
use crate::config::diagnostic::Diagnostic;
use crate::host::text;
use crate::runtime::clusters::ConfigRefusal;
use crate::runtime::config_source::ConfigSource;
use crate::runtime::daemon::{DesiredConfig, RunError, Signals};
use crate::runtime::{daemon, systemd};
use crate::telemetry::report_log;

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: ConfigArguments,
}

pub(crate) fn execute(arguments: &RunArgs, colour: bool) -> anyhow::Result<ExitCode> {
    // Each engine thread has its own memory and uses little of it. With huge pages, a hundred idle
    // clusters would take twice the memory. If the call fails, only memory is wasted.
    rustix::thread::disable_transparent_huge_pages(true).unwrap_or_default();
    let runtime = super::create_runtime()?;
    let directory = systemd::systemd_directory("STATE_DIRECTORY");
    let mut origin = ConfigSource::new(arguments.config.config_sources(), directory.as_deref());
    let read = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        // Reading the configuration can take long, for example because of calls to AWS.
        tokio::select! {
            read = origin.read_config() => Ok(Some((read, signals))),
            () = signals.stop.wait_for_signal() => Ok::<_, RunError>(None),
        }
    });
    let Some((read, signals)) = read? else {
        super::shut_down_runtime(runtime);
        return Ok(ExitCode::SUCCESS);
    };
    let config = match read {
        Ok(config) => config,
        Err(problems) => {
            diagnostics::print_problems(&problems, colour);
            return Ok(startup_failure(origin.is_retryable()));
        }
    };
    if config.clusters.is_empty() {
        super::print_error_line(
            "Error: the configuration has no cluster; add a block cluster \"NAME\" { … }",
        );
        // Terraform may still have to create the first cluster.
        return Ok(startup_failure(!config.polled.is_empty()));
    }
    let telemetry = &config.telemetry;
    let entered = runtime.enter();
    let endpoint = telemetry.otlp.as_deref();
    let (level, traces) = report_log::init(telemetry.log_format, telemetry.log_level, endpoint);
    drop(entered);
    let ran = {
        // Dropping `traces` sends the remaining traces, which needs the runtime.
        let _traces = traces;
        runtime.block_on(daemon::run(to_desired_config(config), level, Driven(origin), signals))
    };
    super::shut_down_runtime(runtime);
    match ran {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(RunError::Prepare(error)) => {
            let (chain, code, help) = (super::format_causes(&error), error.code(), error.help());
            super::print_error_line(&format!("Error: {chain} [{code}]\n\n  = help: {help}"));
            Ok(startup_failure(error.is_retryable()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the exit code of a daemon that fails to start. systemd does not retry `BAD_CONFIG`.
fn startup_failure(is_retryable: bool) -> ExitCode {
    ExitCode::from(if is_retryable { FAILED } else { BAD_CONFIG })
}

/// The configuration source of the daemon.
struct Driven(ConfigSource);

impl daemon::ConfigOrigin for Driven {
    async fn read_config(&mut self) -> Result<DesiredConfig, ConfigRefusal> {
        let read = self.0.read_config().await;
        self.desired_config(read)
    }

    async fn wait_for_change(&mut self) -> Result<DesiredConfig, ConfigRefusal> {
        let read = self.0.wait_for_change().await;
        self.desired_config(read)
    }

    fn on_rejected(&mut self) {
        self.0.on_rejected();
    }
}

impl Driven {
    fn desired_config(
        &mut self,
        read: Result<Config, Vec<Diagnostic>>,
    ) -> Result<DesiredConfig, ConfigRefusal> {
        let config = read.map_err(|problems| ConfigRefusal::Invalid {
            first_error: diagnostics::first_error_line(&problems),
        })?;
        if config.clusters.is_empty() {
            self.0.on_rejected();
            return Err(ConfigRefusal::NoCluster);
        }
        Ok(to_desired_config(config))
    }
}

/// Converts a configuration for the daemon, and logs its warnings.
fn to_desired_config(config: Config) -> DesiredConfig {
    for warning in &config.warnings {
        let location = warning.ranges.first().map(|it| format!("{}:{}", it.file, it.start.line));
        tracing::warn!(
            code = warning.code.as_str(),
            place = location,
            "{}",
            text::bounded_line(&warning.detail)
        );
    }
    DesiredConfig {
        clusters: config.clusters.into_iter().map(Arc::new).collect(),
        fleet: config.fleet,
        telemetry: config.telemetry,
        written: config.written,
    }
}
