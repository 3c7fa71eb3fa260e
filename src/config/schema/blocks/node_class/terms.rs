//! Schema tables of selectors of AWS resources: images, subnets, groups, reservations.
//! They must not depend on the code that reads them.

use super::super::{BLOCK, argument, format_argument};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

const TAGS: &str = "Tags that it must have, all of them; `\"*\"` matches any value.";

pub(super) static AMI: BlockType = BlockType {
    name: "ami",
    repeat: Occurrence::Many,
    about: "Selects images. Blocks are alternatives. An image must match all arguments of a block. \
            `alias` excludes other arguments.",
    arguments: &[
        format_argument("alias", IdFormat::Alias).about(
            "Image that AWS publishes, as family and version, such as `al2023@latest`. Families \
             are `al2`, `al2023`, `bottlerocket`, `windows2019`, `windows2022` and `windows2025`. \
             Windows supports only `latest`.",
        ),
        format_argument("id", IdFormat::ImageId).about("ID of the image."),
        format_argument("ssm_parameter", IdFormat::Parameter)
            .about("SSM parameter that holds an image ID."),
        format_argument("name", IdFormat::Filled)
            .about("Name of the image; `*` matches any characters."),
        format_argument("owner", IdFormat::Filled).about(
            "Account ID, `self`, or an alias such as `amazon`. Defaults to `self` and `amazon` if \
             `name` is set, and to any owner otherwise.",
        ),
        argument("tags", ArgumentType::Searched).about(TAGS),
    ],
    ..BLOCK
};

pub(super) static SUBNET: BlockType = BlockType {
    name: "subnet",
    repeat: Occurrence::Many,
    about: "Selects the subnets to launch into. Blocks are alternatives.",
    arguments: &[
        format_argument("id", IdFormat::SubnetId).about("ID of the subnet."),
        argument("tags", ArgumentType::Searched).about(TAGS),
    ],
    ..BLOCK
};

pub(super) static SECURITY_GROUP: BlockType = BlockType {
    name: "security_group",
    repeat: Occurrence::Many,
    about: "Selects the security groups of the nodes: every group that matches at least one block.",
    arguments: &[
        format_argument("id", IdFormat::SecurityGroupId).about("ID of the group."),
        format_argument("name", IdFormat::Filled).about("Name of the group, not its `Name` tag."),
        argument("tags", ArgumentType::Searched).about(TAGS),
    ],
    ..BLOCK
};

pub(super) static CAPACITY_RESERVATION: BlockType = BlockType {
    name: "capacity_reservation",
    repeat: Occurrence::Many,
    about: "Selects the capacity reservations to use: every reservation that matches at least one \
            block. Without a block, Outrigger targets no reservation.",
    arguments: &[
        format_argument("id", IdFormat::ReservationId).about("ID of the reservation."),
        format_argument("owner", IdFormat::Account)
            .about("Account ID of the owner. Requires `tags` or `instance_match_criteria`."),
        argument("instance_match_criteria", ArgumentType::OneOf(&["open", "targeted"])).about(
            "Selects reservations that accept any matching launch (`open`), or only launches that \
             target them (`targeted`).",
        ),
        argument("tags", ArgumentType::Searched).about(TAGS),
    ],
    ..BLOCK
};

pub(super) static PLACEMENT_GROUP: BlockType = BlockType {
    name: "placement_group",
    about: "Placement group of all nodes, by ID or name.",
    arguments: &[
        format_argument("id", IdFormat::PlacementGroupId).about("ID of the group."),
        format_argument("name", IdFormat::Filled).about("Name of the group."),
    ],
    ..BLOCK
};
