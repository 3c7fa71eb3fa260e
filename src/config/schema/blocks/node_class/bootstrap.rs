//! Schema table of `bootstrap` blocks.
//! It must not depend on the code that reads it.

use super::super::{BLOCK, argument, format_argument};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType};

pub(super) static BOOTSTRAP: BlockType = BlockType {
    name: "bootstrap",
    label: Some("KIND"),
    about: "How nodes join the cluster: `eks` (the default), `kubeadm`, `k3s`, `rke2`, `talos` or \
            `custom`. The block never contains secrets. Outrigger fetches them at each launch.",
    arguments: &[
        argument("mint", ArgumentType::Flag).about(
            "`kubeadm`, `k3s`, `rke2`, `custom`: creates a short-lived bootstrap token in the \
             cluster and renews it. Default of the first three kinds if no other token is set.",
        ),
        argument("token_file", ArgumentType::Path)
            .about("Same kinds: file with the token, such as a systemd credential."),
        format_argument("token_ssm_parameter", IdFormat::Parameter)
            .about("Same kinds: SSM parameter with the token."),
        format_argument("server", IdFormat::Https).about(
            "`k3s`, `rke2`: URL of the supervisor. Defaults to the host of the API server with \
             the standard port.",
        ),
        format_argument("version", IdFormat::Version).about(
            "`k3s`, `rke2`: version to install. If missing, the image must contain the \
             distribution.",
        ),
        argument("machine_config_file", ArgumentType::Path).about(
            "`talos`: file with a worker machine configuration, as `talosctl gen config` creates \
             it. Outrigger adds its own settings.",
        ),
        format_argument("machine_config_ssm_parameter", IdFormat::Parameter)
            .about("`talos`: SSM parameter with the worker machine configuration."),
        format_argument("template", IdFormat::Filled)
            .about("`custom`: user data with `{{ name }}` placeholders. Required for this kind."),
    ],
    ..BLOCK
};
