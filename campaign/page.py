"""docs/campaign.md, written from the record."""
