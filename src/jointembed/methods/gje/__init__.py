"""GJE, Gaussian Joint Embeddings: the joint density of two views' embeddings as one Gaussian.

A context view z_c and a target view z_t. In sample space ("dual") a Gaussian process leads from the one to the other;
in feature space ("primal") both together have one covariance. Each side has a way to collapse, and a remedy:

    dual    targets that can shrink go to zero, and contexts to a point (appendix E): targets without a gradient, from
            an averaged encoder, and whitened
    primal  the likelihood under the batch's own covariance only shrinks (appendix O): alignment, and entropy raised

    >>> z_context, z_target = torch.randn(2, 128, 16, requires_grad=True)
    >>> terms = primal_gje_loss(z_context, z_target)
    >>> terms["loss"].backward()
    >>> dual_gje_loss(z_context, z_target.detach(), kernel="matern52")["loss"].backward()
"""

from .kernels import fourier_features, gram
from .losses import dual_gje_loss, hsic_loss, primal_gje_loss, rff_gje_loss
from .method import GJE
from .prediction import dual_prediction, primal_prediction, rff_prediction

__all__ = [
    "GJE",
    "dual_gje_loss",
    "dual_prediction",
    "fourier_features",
    "gram",
    "hsic_loss",
    "primal_gje_loss",
    "primal_prediction",
    "rff_gje_loss",
    "rff_prediction",
]
