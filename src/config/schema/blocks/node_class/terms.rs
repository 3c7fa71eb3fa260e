//! The tables of what is looked for in AWS: images, subnets, groups, reservations.
//! They must not know how they are read.

use super::super::{BLOCK, argument, form};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

const TAGS: &str = "Tags it has, all of them; `\"*\"` is any value.";

pub(super) static AMI: BlockType = BlockType {
    name: "ami",
    repeat: Occurrence::Many,
    about: "An image, or several. Blocks are alternatives; all arguments of one must fit. An alias \
            stands alone.",
    arguments: &[
        form(
            "alias",
            IdFormat::Alias,
            "Images that AWS publishes: family and version, such as `al2023@latest`. Families are \
             `al2`, `al2023`, `bottlerocket`, `windows2019`, `windows2022` and `windows2025`, of \
             Windows only with `latest`.",
        ),
        form("id", IdFormat::ImageId, "Image id."),
        form(
            "ssm_parameter",
            IdFormat::Parameter,
            "SSM parameter that holds an image id.",
        ),
        form("name", IdFormat::Filled, "Name of the image, `*` allowed."),
        form(
            "owner",
            IdFormat::Filled,
            "Account id, `self`, or an alias such as `amazon`. If missing, `self` and `amazon` \
             where a name is given, and anyone where it is not.",
        ),
        argument("tags", ArgumentType::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static SUBNET: BlockType = BlockType {
    name: "subnet",
    repeat: Occurrence::Many,
    about: "Subnets to launch into. Blocks are alternatives.",
    arguments: &[
        form("id", IdFormat::SubnetId, "Subnet id."),
        argument("tags", ArgumentType::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static SECURITY_GROUP: BlockType = BlockType {
    name: "security_group",
    repeat: Occurrence::Many,
    about: "Security groups of the nodes: all that any of the blocks finds.",
    arguments: &[
        form("id", IdFormat::SecurityGroupId, "Group id."),
        form(
            "name",
            IdFormat::Filled,
            "Name of the group, which is not its tag `Name`.",
        ),
        argument("tags", ArgumentType::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static CAPACITY_RESERVATION: BlockType = BlockType {
    name: "capacity_reservation",
    repeat: Occurrence::Many,
    about: "Capacity reservations to use: all that any of the blocks finds. Without one, none is \
            used on purpose.",
    arguments: &[
        form("id", IdFormat::ReservationId, "Reservation id."),
        form(
            "owner",
            IdFormat::Account,
            "Account of the owner; with tags or criteria.",
        ),
        argument(
            "instance_match_criteria",
            ArgumentType::OneOf(&["open", "targeted"]),
            "",
            "Which launches the reservation takes by itself: any that fits, or those that name it.",
        ),
        argument("tags", ArgumentType::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static PLACEMENT_GROUP: BlockType = BlockType {
    name: "placement_group",
    about: "The placement group of all its nodes, by id or name.",
    arguments: &[
        form("id", IdFormat::PlacementGroupId, "Group id."),
        form("name", IdFormat::Filled, "Name of the group."),
    ],
    ..BLOCK
};
