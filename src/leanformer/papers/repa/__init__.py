"""RePaFormer, published as RePaViT."""
