//! `outrigger version`: prints the version, the Cargo features and the supported Kubernetes
//! versions of this binary.

use std::env::consts;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::features;
use crate::kubernetes_convert::{OLDEST, TESTED, tested_versions};

#[derive(Args, Debug)]
pub(crate) struct VersionArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &VersionArgs) -> anyhow::Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = io::stdout().lock();
    if arguments.json {
        let version_info = json!({
            "format_version": "1.0",
            "outrigger": version,
            "features": features::COMPILED,
            "target": format!("{}-{}", consts::ARCH, consts::OS),
            "kubernetes": {
                "oldest": format!("1.{OLDEST}"),
                "tested": TESTED.map(|minor| format!("1.{minor}")).collect::<Vec<_>>(),
            },
        });
        writeln!(out, "{version_info}")?;
    } else {
        writeln!(out, "outrigger {version}")?;
        writeln!(out, "Kubernetes 1.{OLDEST} and later, tested on {}", tested_versions())?;
    }
    Ok(ExitCode::SUCCESS)
}
