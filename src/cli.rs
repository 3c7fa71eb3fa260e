//! The command line: which verb, with which arguments, and what its end means to the caller.
//! It must not know how a verb works.

mod features;
mod diagnostics;
mod args;
mod stdin;
mod cluster_source;
#[cfg(feature = "daemon")]
mod run;
mod validate;
mod fmt;
mod plan;
mod explain;
#[cfg(feature = "daemon")]
mod doctor;
#[cfg(feature = "daemon")]
mod pause;
#[cfg(feature = "daemon")]
mod resume;
#[cfg(feature = "daemon")]
mod reload;
#[cfg(feature = "daemon")]
mod release;
#[cfg(feature = "daemon")]
mod status;
#[cfg(feature = "daemon")]
mod top;
mod simulate;
#[cfg(feature = "daemon")]
mod simulated_cloud;
#[cfg(feature = "aws")]
mod token;
mod import;
mod export;
mod completions;
mod man;
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

/// Scales the nodes of Kubernetes clusters from outside them.
#[derive(Debug, Parser)]
#[command(name = "outrigger", version, arg_required_else_help = true)]
#[command(after_help = Resettable::from(features::help().map(StyledStr::from)))]
struct CommandLine {
    /// Never colour anything
    #[arg(long, global = true)]
    no_color: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Drive every cluster of a configuration: the daemon
    #[cfg(feature = "daemon")]
    Run(run::RunArgs),
    /// Check a configuration; nothing is contacted
    Validate(validate::ValidateArgs),
    /// Write files of configuration in their canonical form, as Terraform's `fmt` does
    Fmt(fmt::FmtArgs),
    /// Show what would be done about clusters now; nothing is done
    Plan(plan::PlanArgs),
    /// Explain why a pod has its place, or none, whether a node leaves, and what a pool can have
    Explain(explain::ExplainArgs),
    /// Say whether the daemon would work here, and what puts right what would not
    #[cfg(feature = "daemon")]
    Doctor(doctor::DoctorArgs),
    /// Have nothing voluntary done in a cluster, or in one of its pools
    #[cfg(feature = "daemon")]
    Pause(pause::PauseArgs),
    /// End a pause
    #[cfg(feature = "daemon")]
    Resume(resume::ResumeArgs),
    /// Have the daemon read its configuration again, or accept one by which many nodes would leave
    #[cfg(feature = "daemon")]
    Reload(reload::ReloadArgs),
    /// Show how the clusters are doing that the daemon of this host drives
    #[cfg(feature = "daemon")]
    Status(status::StatusArgs),
    /// Watch clusters, nodes, pending pods and what is done about them on a full screen
    #[cfg(feature = "daemon")]
    Top(top::TopArgs),
    /// Take our finalizers and taints off the nodes of a cluster, and leave them as they are
    #[cfg(feature = "daemon")]
    Release(release::ReleaseArgs),
    /// Run a scenario in a simulated world, and show it
    Simulate(simulate::SimulateArgs),
    /// Serve a simulated EC2 on loopback, for `simulated { address = … }`
    #[cfg(feature = "daemon")]
    SimulatedCloud(simulated_cloud::SimulatedCloudArgs),
    /// Print a token for the API of an EKS cluster, as an exec plugin of kubectl does
    #[cfg(feature = "aws")]
    Token(token::TokenArgs),
    /// Make HCL of Karpenter's objects, in files or in a cluster, or of Cluster Autoscaler
    Import(import::ImportArgs),
    /// Make Karpenter's objects of a configuration
    Export(export::ExportArgs),
    /// Print what completes the command line in a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages
    Man(man::ManArgs),
    /// Print the version
    Version(version::VersionArgs),
}

/// Does what the arguments, the program's name first, ask for.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut command = CommandLine::command();
    command.build();
    let arguments = args::with_two_dashes(arguments, &args::long_options(&command));
    if let Some(code) = refuse_missing(&arguments) {
        return code;
    }
    let line = match CommandLine::try_parse_from(&arguments) {
        Ok(line) => line,
        Err(error) => {
            let Some(code) = code_of_usage(&arguments).filter(|_| error.use_stderr()) else {
                error.exit()
            };
            // There is nowhere left to say that stderr is gone.
            error.print().unwrap_or_default();
            return ExitCode::from(code);
        }
    };
    let colour = !line.no_color && !args::is_colour_unwanted();
    let end = match line.verb {
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
        Verb::Status(arguments) => status::execute(&arguments),
        #[cfg(feature = "daemon")]
        Verb::Top(arguments) => top::execute(&arguments, colour),
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
    end.unwrap_or_else(|error| failed(&error))
}

/// What a verb ends with that could not do what was asked.
const FAILED: u8 = 1;

/// The configuration or the arguments are to blame: a restart would not help. systemd knows it by
/// `RestartPreventExitStatus=78`, sysexits.h as EX_CONFIG.
const BAD_CONFIG: u8 = 78;
/// What wrong arguments end a verb with that has no code of its own for them.
const USAGE: u8 = 2;

/// What wrong arguments end with, where that is not as everywhere.
fn code_of_usage(arguments: &[OsString]) -> Option<u8> {
    match &*verb_of(arguments)? {
        "run" => Some(BAD_CONFIG),
        // Their 2 says what was found.
        "doctor" | "import" | "plan" | "status" | "explain" | "export" | "top" => Some(FAILED),
        _ => None,
    }
}

/// The verb that the arguments begin with, or ask for help about.
fn verb_of(arguments: &[OsString]) -> Option<Cow<'_, str>> {
    let words = arguments.iter().skip(1).map(|it| it.to_string_lossy());
    let mut words = words.filter(|it| !it.starts_with('-'));
    match words.next() {
        Some(help) if help == "help" => words.next().or(Some(help)),
        verb => verb,
    }
}

/// Says which build has the verb, where this one leaves it out.
fn refuse_missing(arguments: &[OsString]) -> Option<ExitCode> {
    let verb = verb_of(arguments)?;
    let feature = features::missing(&verb)?;
    say(&format!(
        "Error: this build has no verb {verb:?}: it was compiled without the feature \
         {feature:?}\n  = help: {}",
        features::EVERY_VERB
    ));
    Some(ExitCode::from(code_of_usage(arguments).unwrap_or(USAGE)))
}

/// Says what went wrong. Nobody reads the rest of a closed pipe, so that is no failure.
fn failed(error: &anyhow::Error) -> ExitCode {
    let closed = error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe);
    if closed {
        return ExitCode::SUCCESS;
    }
    say(&format!("Error: {}", chain(error.as_ref())));
    ExitCode::FAILURE
}

/// An error and its causes, one a line.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = text::causes(error);
    let lines: Vec<&str> = causes.iter().map(|it| it.trim_end()).collect();
    lines.join("\n  because: ")
}

/// Says something on stderr. There is nowhere left to say that stderr is gone.
fn say(text: &str) {
    let line = format!("{text}\n");
    io::stderr().write_all(line.as_bytes()).unwrap_or_default();
}

/// Time for what still runs to be dropped.
#[cfg(feature = "daemon")]
const ENDING: Duration = Duration::from_secs(1);

/// What comes of something async.
#[cfg(feature = "daemon")]
fn wait_for<T>(doing: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = runtime()?;
    let done = runtime.block_on(doing);
    end(runtime);
    Ok(done)
}

/// Ends what still runs, programs such as plugins included. What cannot be ended, such as the
/// lookup of a name, is not waited for.
#[cfg(feature = "daemon")]
fn end(runtime: Runtime) {
    runtime.shutdown_timeout(ENDING);
}

/// The async runtime. Two threads carry all clusters' calls; deciding has threads of its own.
#[cfg(feature = "daemon")]
fn runtime() -> anyhow::Result<Runtime> {
    // One provider of cryptography for all clients; only tests find one in place already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the async runtime")
}
