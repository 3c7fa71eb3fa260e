//! The command line: parses the arguments, runs the verb and returns its exit code.

// Verbs that this build does not include.
mod features;
// Output of configuration diagnostics.
mod diagnostics;
// Arguments that several verbs share.
mod args;
// Input from standard input.
mod stdin;
// Live clusters, or a state file.
mod cluster_source;
// Notes on unusual conditions of a cluster, for `status` and `top`.
pub mod cluster_notes;
// `outrigger run`.
#[cfg(feature = "daemon")]
mod run;
// `outrigger validate`.
mod validate;
// `outrigger fmt`.
mod fmt;
// `outrigger plan`.
mod plan;
// `outrigger explain`.
mod explain;
// `outrigger doctor`.
#[cfg(feature = "daemon")]
mod doctor;
// `outrigger pause`.
#[cfg(feature = "daemon")]
mod pause;
// `outrigger resume`.
#[cfg(feature = "daemon")]
mod resume;
// `outrigger reload`.
#[cfg(feature = "daemon")]
mod reload;
// `outrigger sweep`.
#[cfg(feature = "daemon")]
mod sweep;
// `outrigger release`.
#[cfg(feature = "daemon")]
mod release;
// `outrigger status`.
#[cfg(feature = "daemon")]
mod status;
// `outrigger top`.
pub mod top;
// `outrigger simulate`.
mod simulate;
// `outrigger simulated-cloud`.
#[cfg(feature = "daemon")]
mod simulated_cloud;
// `outrigger token`.
#[cfg(feature = "aws")]
mod token;
// `outrigger import`.
mod import;
// `outrigger export`.
mod export;
// `outrigger completions`.
mod completions;
// `outrigger man`.
mod man;
// `outrigger version`.
mod version;

use std::borrow::Cow;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
#[cfg(feature = "daemon")]
use std::time::Duration;

#[cfg(feature = "daemon")]
use anyhow::Context;
use clap::builder::{Resettable, StyledStr};
use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "daemon")]
use tokio::runtime::{Builder, Runtime};

use crate::host::text;

/// Scales the nodes of Kubernetes clusters from outside the clusters.
#[derive(Debug, Parser)]
#[command(name = "outrigger", version, arg_required_else_help = true)]
#[command(after_help = Resettable::from(features::missing_verbs_help().map(StyledStr::from)))]
struct CommandLine {
    /// Disable coloured output
    #[arg(long, global = true)]
    no_color: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon that manages all clusters of a configuration
    #[cfg(feature = "daemon")]
    Run(run::RunArgs),
    /// Check a configuration without contacting any cluster or cloud
    Validate(validate::ValidateArgs),
    /// Rewrite configuration files in canonical format, like `terraform fmt`
    Fmt(fmt::FmtArgs),
    /// Show which nodes would be launched and disrupted now, without changing anything
    Plan(plan::PlanArgs),
    /// Explain where a pod fits, why a node is kept or disrupted, or what a pool can launch
    Explain(explain::ExplainArgs),
    /// Check that the daemon can run on this host and print fixes for what cannot work
    #[cfg(feature = "daemon")]
    Doctor(doctor::DoctorArgs),
    /// Pause voluntary disruption in a cluster or pool
    #[cfg(feature = "daemon")]
    Pause(pause::PauseArgs),
    /// Resume voluntary disruption in a paused cluster or pool
    #[cfg(feature = "daemon")]
    Resume(resume::ResumeArgs),
    /// Reload the daemon's configuration, or approve a change that would disrupt many nodes
    #[cfg(feature = "daemon")]
    Reload(reload::ReloadArgs),
    /// Run a sweep now on the local daemon: find nodes to disrupt, and print each with its verdict
    #[cfg(feature = "daemon")]
    Sweep(sweep::SweepArgs),
    /// Show the status of the clusters managed by the local daemon
    #[cfg(feature = "daemon")]
    Status(status::StatusArgs),
    /// Watch clusters, nodes, pending pods and recent activity in a full-screen view
    #[cfg(feature = "daemon")]
    Top(top::command::TopArgs),
    /// Remove Outrigger's finalizers and taints from the nodes of a cluster; the nodes keep running
    #[cfg(feature = "daemon")]
    Release(release::ReleaseArgs),
    /// Run a scenario in a simulated cluster and print its timeline
    Simulate(simulate::SimulateArgs),
    /// Serve a simulated EC2 on loopback, for `simulated { address = … }`
    #[cfg(feature = "daemon")]
    SimulatedCloud(simulated_cloud::SimulatedCloudArgs),
    /// Print a token for the API of an EKS cluster, for use as a kubectl exec plugin
    #[cfg(feature = "aws")]
    Token(token::TokenArgs),
    /// Convert Karpenter objects or a Cluster Autoscaler deployment to HCL
    Import(import::ImportArgs),
    /// Convert a configuration to Karpenter objects
    Export(export::ExportArgs),
    /// Print the completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages
    Man(man::ManArgs),
    /// Print the version
    Version(version::VersionArgs),
}

/// Runs the verb that the arguments name. The first argument is the program's name.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut command = CommandLine::command();
    command.build();
    let arguments = args::with_two_dashes(arguments, &args::long_options(&command));
    if let Some(code) = refuse_missing(&arguments) {
        return code;
    }
    let command_line = match CommandLine::try_parse_from(&arguments) {
        Ok(command_line) => command_line,
        Err(error) => {
            let Some(code) = code_of_usage(&arguments).filter(|_| error.use_stderr()) else {
                error.exit()
            };
            // A failed write to stderr cannot be reported.
            error.print().unwrap_or_default();
            return ExitCode::from(code);
        }
    };
    let colour = !command_line.no_color && !args::is_colour_unwanted();
    let end = match command_line.verb {
        #[cfg(feature = "daemon")]
        Verb::Run(arguments) => run::execute(&arguments, colour),
        Verb::Validate(arguments) => validate::execute(&arguments, colour),
        Verb::Fmt(arguments) => fmt::execute(&arguments, colour),
        Verb::Plan(arguments) => plan::execute(&arguments, colour),
        Verb::Explain(arguments) => explain::execute(&arguments, colour),
        #[cfg(feature = "daemon")]
        Verb::Doctor(arguments) => doctor::execute(&arguments, colour),
        #[cfg(feature = "daemon")]
        Verb::Pause(arguments) => pause::execute(&arguments, colour),
        #[cfg(feature = "daemon")]
        Verb::Resume(arguments) => resume::execute(&arguments, colour),
        #[cfg(feature = "daemon")]
        Verb::Reload(arguments) => reload::execute(&arguments, colour),
        #[cfg(feature = "daemon")]
        Verb::Sweep(arguments) => sweep::execute(&arguments),
        #[cfg(feature = "daemon")]
        Verb::Status(arguments) => status::execute(&arguments),
        #[cfg(feature = "daemon")]
        Verb::Top(arguments) => top::command::execute(&arguments, colour),
        #[cfg(feature = "daemon")]
        Verb::Release(arguments) => release::execute(&arguments, colour),
        Verb::Simulate(arguments) => simulate::execute(&arguments, colour),
        #[cfg(feature = "daemon")]
        Verb::SimulatedCloud(arguments) => simulated_cloud::execute(arguments),
        #[cfg(feature = "aws")]
        Verb::Token(arguments) => token::execute(arguments),
        Verb::Import(arguments) => import::execute(&arguments),
        Verb::Export(arguments) => export::execute(&arguments, colour),
        Verb::Completions(arguments) => completions::execute(&arguments),
        Verb::Man(arguments) => man::execute(&arguments),
        Verb::Version(arguments) => version::execute(&arguments),
    };
    end.unwrap_or_else(|error| report_failure(&error))
}

/// The exit code of a verb that failed.
const FAILED: u8 = 1;

/// The configuration or the arguments are invalid: a restart would not help. The systemd unit has
/// `RestartPreventExitStatus=78`; sysexits.h calls this code EX_CONFIG.
const BAD_CONFIG: u8 = 78;
/// The exit code for wrong arguments, unless the verb has its own.
const USAGE: u8 = 2;

/// Returns success if a verb found no problem, else this exit code.
fn success_or(code: u8, is_well: bool) -> ExitCode {
    ExitCode::from(if is_well { 0 } else { code })
}

/// Returns the verb's own exit code for wrong arguments, if it has one.
fn code_of_usage(arguments: &[OsString]) -> Option<u8> {
    match &*verb_of(arguments)? {
        "run" => Some(BAD_CONFIG),
        // These verbs use exit code 2 for problems or changes that they found.
        "doctor" | "import" | "plan" | "status" | "explain" | "export" | "top" => Some(FAILED),
        _ => None,
    }
}

/// Returns the verb at the start of the arguments, or the verb after `help`.
fn verb_of(arguments: &[OsString]) -> Option<Cow<'_, str>> {
    let words = arguments.iter().skip(1).map(|it| it.to_string_lossy());
    let mut words = words.filter(|it| !it.starts_with('-'));
    match words.next() {
        Some(help) if help == "help" => words.next().or(Some(help)),
        verb => verb,
    }
}

/// Prints which build has the verb if this build does not include it.
fn refuse_missing(arguments: &[OsString]) -> Option<ExitCode> {
    let verb = verb_of(arguments)?;
    let feature = features::missing_feature(&verb)?;
    print_error_line(&format!(
        "Error: this build does not include the verb {verb:?}: it was compiled without the feature \
         {feature:?}\n  = help: {}",
        features::EVERY_VERB
    ));
    Some(ExitCode::from(code_of_usage(arguments).unwrap_or(USAGE)))
}

/// Prints an error. A closed pipe is not a failure: the reader does not want the rest of the
/// output.
fn report_failure(error: &anyhow::Error) -> ExitCode {
    let closed = error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe);
    if closed {
        return ExitCode::SUCCESS;
    }
    print_error_line(&format!("Error: {}", format_causes(error.as_ref())));
    ExitCode::FAILURE
}

/// Formats an error and its causes, one per line.
fn format_causes(error: &(dyn Error + 'static)) -> String {
    let causes = text::error_causes(error);
    let lines: Vec<&str> = causes.iter().map(|it| it.trim_end()).collect();
    lines.join("\n  because: ")
}

/// Formats a count with its noun in singular or plural.
fn count_noun(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Prints a line on stderr. A failed write cannot be reported.
fn print_error_line(text: &str) {
    let line = format!("{text}\n");
    io::stderr().write_all(line.as_bytes()).unwrap_or_default();
}

/// Time limit for background tasks when the runtime shuts down.
#[cfg(feature = "daemon")]
const ENDING: Duration = Duration::from_secs(1);

/// Runs a future to completion on a new runtime.
#[cfg(feature = "daemon")]
fn wait_for<T>(doing: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = create_runtime()?;
    let done = runtime.block_on(doing);
    shut_down_runtime(runtime);
    Ok(done)
}

/// Stops the tasks that still run, including child processes such as plugins. Does not wait for
/// tasks that cannot be stopped, such as DNS lookups.
#[cfg(feature = "daemon")]
fn shut_down_runtime(runtime: Runtime) {
    runtime.shutdown_timeout(ENDING);
}

/// Creates the async runtime. Two threads handle the calls of all clusters. Engines run on their
/// own threads.
#[cfg(feature = "daemon")]
fn create_runtime() -> anyhow::Result<Runtime> {
    // All clients share one crypto provider. A provider is already installed only in tests.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the async runtime")
}
