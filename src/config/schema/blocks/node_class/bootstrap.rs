//! The table of `bootstrap` blocks.
//! It must not know how it is read.

use super::super::{BLOCK, argument, form};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType};

pub(super) static BOOTSTRAP: BlockType = BlockType {
    name: "bootstrap",
    label: Some("KIND"),
    about: "How a node joins its cluster: `eks` (if missing), `kubeadm`, `k3s`, `rke2`, `talos` or \
            `custom`. Secrets are never in here: they are fetched at each launch.",
    arguments: &[
        argument(
            "mint",
            ArgumentType::Flag,
            "",
            "`kubeadm`, `k3s`, `rke2`, `custom`: the token is a bootstrap token, made in the \
             cluster, short-lived and renewed. The default of the first three where there is no \
             other token.",
        ),
        argument(
            "token_file",
            ArgumentType::Path,
            "",
            "The same: file with the token, such as one of systemd's credentials.",
        ),
        form(
            "token_ssm_parameter",
            IdFormat::Parameter,
            "The same: SSM parameter with the token.",
        ),
        form(
            "server",
            IdFormat::Https,
            "`k3s`, `rke2`: URL of the supervisor; the host of the API with the usual port if \
             missing.",
        ),
        form(
            "version",
            IdFormat::Version,
            "`k3s`, `rke2`: version to install; the image has it if missing.",
        ),
        argument(
            "machine_config_file",
            ArgumentType::Path,
            "",
            "`talos`: file with a machine configuration for workers, as `talosctl gen config` \
             makes it; what is ours is put in.",
        ),
        form(
            "machine_config_ssm_parameter",
            IdFormat::Parameter,
            "`talos`: SSM parameter with it.",
        ),
        form(
            "template",
            IdFormat::Filled,
            "`custom`: user data with `{{ name }}` in it. Required there.",
        ),
    ],
    ..BLOCK
};
