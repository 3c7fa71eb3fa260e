//! `outrigger run`: the daemon.
//! It must not know how clusters are driven.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::args::ConfigArguments;
use super::{BAD_CONFIG, diagnostics};
use crate::config::Config;
use crate::config::diagnostic::Diagnostic;
use crate::host::text;
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
    // Each engine's thread has memory of its own, little of it used: of huge pages, a hundred idle
    // clusters take twice what they need. Without leave for it nothing is lost but memory.
    rustix::thread::disable_transparent_huge_pages(true).unwrap_or_default();
    let runtime = super::runtime()?;
    let directory = systemd::directory("STATE_DIRECTORY");
    let mut origin = ConfigSource::new(arguments.config.wanted(), directory.as_deref());
    let read = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        // Whoever is asked for what the configuration says may take his time.
        tokio::select! {
            read = origin.read() => Ok(Some((read, signals))),
            () = signals.stop.called() => Ok::<_, RunError>(None),
        }
    });
    let Some((read, signals)) = read? else {
        super::end(runtime);
        return Ok(ExitCode::SUCCESS);
    };
    let config = match read {
        Ok(config) => config,
        Err(problems) => {
            diagnostics::show(&problems, colour);
            return Ok(match origin.may_pass() {
                true => ExitCode::FAILURE,
                false => ExitCode::from(BAD_CONFIG),
            });
        }
    };
    if config.clusters.is_empty() {
        super::say("Error: the configuration names no cluster; write cluster \"NAME\" { … }");
        return Ok(match config.polled.is_empty() {
            true => ExitCode::from(BAD_CONFIG),
            // Terraform may still have to make the first.
            false => ExitCode::FAILURE,
        });
    }
    let telemetry = &config.telemetry;
    let entered = runtime.enter();
    let endpoint = telemetry.otlp.as_deref();
    let (level, traces) = report_log::init(telemetry.log_format, telemetry.log_level, endpoint);
    drop(entered);
    let ran = {
        // What is left of them is sent while there is a runtime.
        let _traces = traces;
        runtime.block_on(daemon::run(driven(config), level, Driven(origin), signals))
    };
    super::end(runtime);
    match ran {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(RunError::Prepare(error)) => {
            let (chain, code, help) = (super::chain(&error), error.code(), error.help());
            super::say(&format!("Error: {chain} [{code}]\n\n  = help: {help}"));
            Ok(match error.may_pass() {
                true => ExitCode::FAILURE,
                false => ExitCode::from(BAD_CONFIG),
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// The configuration as what is to be driven.
struct Driven(ConfigSource);

impl daemon::ConfigOrigin for Driven {
    async fn read(&mut self) -> Result<DesiredConfig, String> {
        let read = self.0.read().await;
        self.accepted(read)
    }

    async fn changed(&mut self) -> Result<DesiredConfig, String> {
        let read = self.0.changed().await;
        self.accepted(read)
    }

    fn refused(&mut self) {
        self.0.refused();
    }
}

impl Driven {
    fn accepted(&mut self, read: Result<Config, Vec<Diagnostic>>) -> Result<DesiredConfig, String> {
        let config = read.map_err(|problems| diagnostics::line(&problems))?;
        if config.clusters.is_empty() {
            self.0.refused();
            return Err("it names no cluster any more [no-cluster]".to_owned());
        }
        Ok(driven(config))
    }
}

/// What a configuration wants driven; what is odd about it goes to the log.
fn driven(config: Config) -> DesiredConfig {
    for warning in &config.warnings {
        let place = warning
            .ranges
            .first()
            .map(|it| format!("{}:{}", it.file, it.start.line));
        tracing::warn!(
            code = warning.code.as_str(),
            place,
            "{}",
            text::bounded(&warning.detail)
        );
    }
    DesiredConfig {
        clusters: config.clusters.into_iter().map(Arc::new).collect(),
        fleet: config.fleet,
        telemetry: config.telemetry,
        written: config.written,
    }
}
